/**
 * How long one call waits, and who may end it: its limits, its deadline, and its caller's signal.
 *
 * Rule 1: whatever waits, waits through here, so that nothing outlives the deadline or the signal.
 * Rule 2: a deadline that is over is `DeadlinePassed`, which whoever set it turns into an error with a sentence; a
 *         signal that fired throws its own reason.
 */

import type { Settings } from "./settings.js";

/** The longest a timer can be set for. */
const TIMER_MS_MAX = 2 ** 31 - 1;

/** The time that the caller gave is over. Never leaves this package. */
export class DeadlinePassed extends Error {}

export class Patience {
  readonly settings: Settings;
  readonly signal: AbortSignal | undefined;
  readonly #deadline: number | undefined;

  constructor(settings: Settings, signal?: AbortSignal, deadline?: number) {
    this.settings = settings;
    this.signal = signal;
    this.#deadline = deadline;
  }

  /** Whether it ends by itself. */
  get bounded(): boolean {
    return this.#deadline !== undefined;
  }

  /** The same, over in so long at the latest; undefined leaves it as it is. */
  within(timeoutMs: number | undefined): Patience {
    if (timeoutMs === undefined) {
      return this;
    }
    if (!(timeoutMs >= 0)) {
      throw new RangeError(`a timeout is 0 ms or more, got ${timeoutMs}`);
    }
    const deadline = Math.min(now() + timeoutMs, this.#deadline ?? Infinity);
    return new Patience(this.settings, this.signal, deadline);
  }

  /** The same, over in so long, which may be a little later than its own deadline: for an answer that is on its way. */
  graced(ms: number): Patience {
    return new Patience(this.settings, this.signal, now() + ms);
  }

  /** How long a step may take: `mostMs`, or what is left. */
  leftMs(mostMs: number): number {
    this.signal?.throwIfAborted();
    if (this.#deadline === undefined) {
      return mostMs;
    }
    const left = this.#deadline - now();
    if (left <= 0) {
      throw new DeadlinePassed();
    }
    return Math.min(mostMs, left);
  }

  /** Wait, but not past the deadline. */
  async pause(ms: number): Promise<void> {
    const most = this.leftMs(ms);
    const { signal } = this;
    await new Promise<void>((resolve, reject) => {
      const leave = (): void => {
        clearTimeout(timer);
        reject(signal?.reason as Error);
      };
      const timer = setTimeout(
        () => {
          signal?.removeEventListener("abort", leave);
          resolve();
        },
        Math.min(most, TIMER_MS_MAX),
      );
      signal?.addEventListener("abort", leave, { once: true });
    });
  }
}

/** Aborts its own signal when nothing happened for too long, or when the caller's signal fires. */
export class Watch {
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #leave: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(outer: AbortSignal | undefined) {
    this.#outer = outer;
    this.#leave = () => this.#controller.abort(outer?.reason);
    outer?.addEventListener("abort", this.#leave, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** From now on it may be silent for so long. */
  arm(ms: number): void {
    this.disarm();
    const most = Math.min(ms, TIMER_MS_MAX);
    this.#timer = setTimeout(
      () => this.#controller.abort(new Silence(`nothing came for ${Math.round(most)} ms`)),
      most,
    );
  }

  disarm(): void {
    clearTimeout(this.#timer);
  }

  /** Whatever is still under way is given up. */
  close(): void {
    this.disarm();
    this.#outer?.removeEventListener("abort", this.#leave);
    this.#controller.abort();
  }
}

class Silence extends Error {}

/** Milliseconds by a clock that nobody sets. */
export function now(): number {
  return performance.now();
}
