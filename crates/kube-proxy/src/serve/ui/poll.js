// Asks again and again, only while the page is seen: at most once in two seconds, and so seldom that
// an answer that takes long costs the node no more than a sixth of the time.

const EVERY = 2000;
const PATIENCE = 15_000;
const SLOWEST = 30_000;

/** The daemon answered, and said no. */
export class Refusal extends Error {
  constructor(status, says) {
    super(says);
    this.status = status;
  }
}

/** One answer of the API, as an object. */
export async function ask(path, signal) {
  const limited = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE)]);
  const answer = await fetch(path, { signal: limited, headers: { Accept: 'application/json' } });
  const text = await answer.text();
  if (answer.ok) return JSON.parse(text);
  let says = text.trim();
  try {
    says = JSON.parse(text).error ?? says;
  } catch {
    // Not the API's own words: what was sent is told.
  }
  throw new Refusal(answer.status, says || `HTTP status ${answer.status}`);
}

/**
 * Calls `turn(signal, number)` until the function that is returned is called. A turn that fails is
 * its own to tell; the next comes as after any other.
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
