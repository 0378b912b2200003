/**
 * What is read item by item, and can be left at any time.
 *
 * Rule 1: nothing is asked of the server before the first item is.
 * Rule 2: leaving (`break`, `return()`, the signal) ends a wait that is under way; an async generator alone would wait
 *         for its next item first.
 */

export class Following<T> implements AsyncIterableIterator<T> {
  readonly #items: AsyncGenerator<T, void>;
  readonly #controller = new AbortController();
  readonly #outer: AbortSignal | undefined;
  readonly #leave = (): void => this.#controller.abort(this.#outer?.reason);
  #left = false;

  constructor(items: (signal: AbortSignal) => AsyncGenerator<T, void>, outer: AbortSignal | undefined) {
    this.#outer = outer;
    if (outer?.aborted) {
      this.#leave();
    }
    outer?.addEventListener("abort", this.#leave, { once: true });
    this.#items = items(this.#controller.signal);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    let step: IteratorResult<T, void>;
    try {
      step = await this.#items.next();
    } catch (error) {
      this.#settle();
      if (this.#left) {
        return { done: true, value: undefined };
      }
      throw error;
    }
    if (step.done) {
      this.#settle();
      return { done: true, value: undefined };
    }
    return step;
  }

  /** Leave. What is still to be done for it has been done when this returns. */
  async return(): Promise<IteratorResult<T, undefined>> {
    this.#left = true;
    this.#settle();
    this.#controller.abort();
    await this.#items.return();
    return { done: true, value: undefined };
  }

  #settle(): void {
    this.#outer?.removeEventListener("abort", this.#leave);
  }
}
