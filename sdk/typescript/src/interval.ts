/**
 * The interval of a run: which events belong to it, when it is over, and what is reported of it. Pure.
 *
 *     … │ inbox/queued (its own message)   … everything …   agent/status idle │ …
 *         first                                                          last
 *
 * Rule 1: everything before the `inbox/queued` of its own message is skipped, whatever it is: an idle that was
 *         published late, somebody else's answer, yesterday.
 * Rule 2: everything from there through the first `agent/status{idle}` with a greater seq belongs to it, both ends
 *         included. Other people's messages, steering and several turns are part of it.
 * Rule 3: the end is an event. No saved cursor and no clock has a say.
 * Rule 4: what is reported is about the interval: the text that was said last in it. It is not claimed to be the
 *         message's, and nothing is said of how anything ended.
 * Rule 5: an event that was fed before, and one of another session, changes nothing.
 */

import type { Event } from "./event.js";
import { isMap } from "./reading.js";
import { lifeAfter, queued, type Life } from "./record.js";
import type { MessageRecord } from "./wire.js";

/** One interval of activity that the caller owned. It has no status and claims no success. */
export interface RunResult {
  readonly sessionId: string;
  readonly messageId: string;
  /** The text that was said last in the interval; empty when none was. */
  readonly finalResponse: string;
  readonly events: readonly Event[];
  /** The seq of the first event: the `inbox/queued` of the run's message. */
  readonly from: number;
  /** The seq of the last event: the idle. */
  readonly to: number;
  /** What became of the message itself, as an observation. */
  readonly message: MessageRecord;
}

/** Feed it the events of the session in order; it keeps those that are its own. */
export class Interval {
  readonly #sessionId: string;
  readonly #messageId: string;
  readonly #events: Event[] = [];
  #life: Life | undefined;
  #seq = 0;
  #done = false;

  constructor(sessionId: string, messageId: string) {
    this.#sessionId = sessionId;
    this.#messageId = messageId;
  }

  /** Whether the last event of the interval was seen. */
  get done(): boolean {
    return this.#done;
  }

  /** The turn that took the message, as far as that was seen. It may be over, and another one open. */
  get turn(): number | undefined {
    return this.#life?.record.turn ?? undefined;
  }

  /** Take the next event; whether it belongs to the interval. */
  feed(event: Event): boolean {
    if (this.#done || event.sessionId !== this.#sessionId || event.seq <= this.#seq) {
      return false;
    }
    this.#seq = event.seq;
    this.#life = this.#lifeAfter(event);
    if (this.#life === undefined) {
      return false;
    }
    this.#events.push(event);
    this.#done = isIdle(event);
    return true;
  }

  /** What is reported of the interval, once it is done. */
  result(): RunResult {
    const first = this.#events.at(0);
    const last = this.#events.at(-1);
    if (!this.#done || this.#life === undefined || first === undefined || last === undefined) {
      throw new Error(`the run of message ${this.#messageId} is not over`);
    }
    return {
      sessionId: this.#sessionId,
      messageId: this.#messageId,
      finalResponse: finalResponse(this.#events),
      events: [...this.#events],
      from: first.seq,
      to: last.seq,
      message: this.#life.record,
    };
  }

  #lifeAfter(event: Event): Life | undefined {
    if (this.#life !== undefined) {
      return lifeAfter(this.#life, event);
    }
    const isOwn = event.type === "inbox/queued" && event.data.messageId === this.#messageId;
    return isOwn ? queued(event) : undefined;
  }
}

/** Whether the event says that the whole agent is idle. */
export function isIdle(event: Event): boolean {
  return event.type === "agent/status" && event.data.status === "idle";
}

/** The text of the last `assistant/message` that has text; empty when none has. */
export function finalResponse(events: readonly Event[]): string {
  for (const event of [...events].reverse()) {
    const text = event.type === "assistant/message" ? textOf(event.data.content) : "";
    if (text.trim() !== "") {
      return text;
    }
  }
  return "";
}

/** The text blocks of a content, joined; a bare string is one text block. */
function textOf(content: unknown): string {
  if (typeof content === "string") {
    return content;
  }
  const blocks: unknown[] = Array.isArray(content) ? content : [];
  return blocks
    .map((block) => (isMap(block) && block["type"] === "text" ? block["text"] : ""))
    .filter(isText)
    .join("");
}

function isText(value: unknown): value is string {
  return typeof value === "string";
}
