// Polls the daemon while the page is visible. The pause after an answer is five times as long as the
// answer took, but at least two and at most 30 seconds.

const EVERY = 2000;
const PATIENCE = 15_000;
const SLOWEST = 30_000;

/** An error response of the daemon. */
export class Refusal extends Error {
  constructor(status, says) {
    super(says);
    this.status = status;
  }
}

/** Returns one answer of the API as an object. */
export async function ask(path, signal) {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]);
  const answer = await fetch(path, { signal: limited, headers: { Accept: 'application/json' } });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let says = text.trim();
  try {
    says = JSON.parse(text).error ?? says;
  } catch {
    // The text is not a JSON object of the API, so the page shows it unchanged.
  }
  throw new Refusal(answer.status, says || `HTTP status ${answer.status}`);
}

/**
 * Calls `turn(signal, number)` periodically. Returns a function that ends the calls. A turn reports its
 * own errors.
 */
export function poll(turn) {
  const ended = new AbortController();
  run(turn, ended.signal);
  return () => ended.abort();
}

async function run(turn, signal) {
  for (let number = 0; !signal.aborted; number += 1) {
    if (document.hidden) await seen(signal);
    if (signal.aborted) return;
    const started = performance.now();
    await turn(signal, number);
    const took = performance.now() - started;
    await pause(Math.min(Math.max(EVERY, 5 * took), SLOWEST), signal);
  }
}

function seen(signal) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', look);
      signal.removeEventListener('abort', look);
      resolve();
    };
    document.addEventListener('visibilitychange', look);
    signal.addEventListener('abort', look);
  });
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
