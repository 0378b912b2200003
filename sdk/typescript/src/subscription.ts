/**
 * Reading a session's events without a gap, over connections that may be cut at any byte.
 *
 *     open ──> frames ──> events in order of seq ──> caller
 *       ^                     │ cut, silent, or a seq is missing
 *       └──── wait a bit <────┘ after = the last seq that was given
 *
 * Rule 1: the next event is the one with the next seq. One that was given before is dropped; when one is missing,
 *         nothing after it is given: the stream is opened again after the last one that was.
 * Rule 2: a stream resumes from the last seq by itself, as often as it gets anywhere: an event came, or it lived for
 *         `settledMs`. `reconnectsMax` times in a row without that is `TransportLost`.
 * Rule 3: what the server says is not kept any more is `CursorExpired`; never a silent skip.
 * Rule 4: deltas have no seq. They are passed on as they come and may be missing after a cut.
 */

import type { Address } from "./address.js";
import { BadAnswer, CursorExpired, TransportLost } from "./errors.js";
import { readDelta, readEvent, type Event, type Item } from "./event.js";
import { now, type Patience } from "./patience.js";
import { decode } from "./reading.js";
import { backoffMs, failure, integer, judge, mediaType } from "./retry.js";
import { Parser, type Frame } from "./sse.js";
import type { Reply, Request, Stream, Transport } from "./transport.js";

const EVENT_STREAM = "text/event-stream";

interface Open {
  readonly stream: Stream;
  readonly parser: Parser;
  readonly since: number;
}

/** One reader of one session, from just after a cursor. Close it. */
export class Subscription {
  readonly #transport: Transport;
  readonly #patience: Patience;
  readonly #address: Address;
  readonly #deltas: boolean;
  #seq: number;
  #open: Open | undefined;
  #failures = 0;
  #reached = false;
  #trouble: string | undefined;
  #gap: CursorExpired | undefined;

  constructor(transport: Transport, patience: Patience, address: Address, after: number, deltas: boolean) {
    this.#transport = transport;
    this.#patience = patience;
    this.#address = address;
    this.#seq = after;
    this.#deltas = deltas;
  }

  /** Return once the server is sending. */
  async open(): Promise<Open> {
    while (this.#open === undefined) {
      if (this.#failures > 0) {
        await this.#wait(0);
      }
      const answer = await this.#transport.open(this.#request(), this.#patience);
      if (answer.kind === "stream") {
        this.#open = this.#begun(answer);
      } else if (answer.kind === "reply") {
        await this.#turnedAway(answer);
      } else {
        this.#reached ||= answer.sent;
        this.#fail(answer.why);
      }
    }
    return this.#open;
  }

  /** The next items, at least one. */
  async receive(): Promise<Item[]> {
    for (;;) {
      if (this.#gap !== undefined) {
        throw this.#gap;
      }
      if (this.#trouble !== undefined) {
        this.#cut(this.#trouble);
      }
      const { stream, parser } = await this.open();
      const answer = await stream.read(this.#patience.leftMs(this.#patience.settings.silenceTimeoutMs));
      if (!(answer instanceof Uint8Array)) {
        this.#cut(answer.why);
        continue;
      }
      const items = this.#take(parser.feed(answer));
      if (items.length > 0) {
        return items;
      }
    }
  }

  close(): void {
    this.#open?.stream.close();
    this.#open = undefined;
  }

  #request(): Request {
    return {
      method: "GET",
      path: this.#address.path("events"),
      query: { after: String(this.#seq), ...(this.#deltas ? { deltas: "1" } : {}) },
      headers: { accept: EVENT_STREAM, "accept-encoding": "identity" },
    };
  }

  #begun(stream: Stream): Open {
    const kind = mediaType(stream.contentType);
    if (kind !== EVENT_STREAM) {
      stream.close();
      throw new BadAnswer(`expected ${EVENT_STREAM}, the server answered ${kind || "nothing that has a type"}`);
    }
    this.#reached = true;
    return { stream, parser: new Parser(this.#patience.settings.frameBytesMax), since: now() };
  }

  async #turnedAway(answer: Reply): Promise<void> {
    this.#reached = true;
    const verdict = judge(answer);
    if (!verdict.transient || verdict.afterMs > this.#patience.settings.retryAfterMaxMs) {
      throw failure(answer);
    }
    this.#fail(`the server answered ${answer.status}`);
    if (verdict.afterMs > 0) {
      await this.#wait(verdict.afterMs);
    }
  }

  async #wait(afterMs: number): Promise<void> {
    await this.#patience.pause(backoffMs(this.#patience.settings, this.#failures, Math.random(), afterMs));
  }

  /** The open stream is over; one that lived long enough is not held against the server. */
  #cut(why: string): void {
    if (this.#open !== undefined && now() - this.#open.since >= this.#patience.settings.settledMs) {
      this.#failures = 0;
    }
    this.close();
    this.#trouble = undefined;
    this.#fail(why);
  }

  #fail(why: string): void {
    this.#failures += 1;
    if (this.#failures > this.#patience.settings.reconnectsMax) {
      throw new TransportLost(
        `the events of session ${this.#address.sessionId} after seq ${this.#seq} cannot be read: ${why}`,
        this.#reached,
      );
    }
  }

  #take(frames: readonly Frame[]): Item[] {
    const items: Item[] = [];
    for (const frame of frames) {
      const item = this.#item(frame);
      if (item !== undefined) {
        items.push(item);
      }
      if (this.#trouble !== undefined || this.#gap !== undefined) {
        break;
      }
    }
    return items;
  }

  #item(frame: Frame): Item | undefined {
    if (frame.event === "session.gap") {
      this.#gap = this.#expired(frame);
    } else if (frame.event === "session.delta") {
      return this.#deltas ? readDelta(decode(frame.data, "a delta"), this.#address.sessionId) : undefined;
    } else if ((frame.event === "session.event" || frame.event === "session.status") && frame.id !== undefined) {
      return this.#inOrder(readEvent(decode(frame.data, "an event"), this.#address.sessionId));
    }
    return undefined;
  }

  #inOrder(event: Event): Event | undefined {
    if (event.seq <= this.#seq) {
      return undefined;
    }
    if (event.seq > this.#seq + 1) {
      this.#trouble = `seq ${event.seq} came after seq ${this.#seq}`;
      return undefined;
    }
    this.#seq = event.seq;
    this.#failures = 0;
    return event;
  }

  #expired(frame: Frame): CursorExpired {
    const gap = decode(frame.data, "the gap");
    const oldest = integer(gap, "oldest");
    const newest = integer(gap, "newest");
    return new CursorExpired(
      `session ${this.#address.sessionId} has no events after seq ${this.#seq}: it keeps ${oldest} to ${newest}`,
      oldest,
      newest,
    );
  }
}
