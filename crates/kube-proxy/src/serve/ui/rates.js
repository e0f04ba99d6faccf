// Computes rates from the counters of two answers.

/** Counters of the last answer, by name. */
export class Rates {
  #before = new Map();
  #now = new Map();
  #then = 0;
  #seconds = 0;

  /** Starts a new answer. */
  turn() {
    const now = performance.now();
    this.#seconds = this.#then === 0 ? 0 : (now - this.#then) / 1000;
    this.#then = now;
    this.#before = this.#now;
    this.#now = new Map();
  }

  /**
   * Returns the growth of `counters` per second as `{connections, bytes, packets}`. Returns null for the
   * first answer and after a reset.
   */
  of(key, counters) {
    if (!counters) return null;
    this.#now.set(key, counters);
    const before = this.#before.get(key);
    if (!before || this.#seconds <= 0) return null;
    const rate = (name) => {
      if (counters[name] === undefined || before[name] === undefined) return undefined;
      return (counters[name] - before[name]) / this.#seconds;
    };
    const both = (one, other) => (one === undefined ? undefined : one + (other ?? 0));
    const found = {
      connections: rate('connections'),
      packets: both(rate('packetsIn'), rate('packetsOut')),
      bytes: both(rate('bytesIn'), rate('bytesOut')),
    };
    return Object.values(found).some((each) => each < 0) ? null : found;
  }
}
