// Polls while the page is visible, at most every two seconds. Slow answers are polled less often, so
// that they take no more than a sixth of the node's time.

const EVERY = 2000;
const PATIENCE = 15_000;
const SLOWEST = 30_000;

/** An error that the daemon returned. */
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
    // Not JSON of the API: show the text as it is.
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
