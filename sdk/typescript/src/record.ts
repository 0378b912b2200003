/**
 * What became of one message, read off the events of a ledger.
 *
 *     queued ──> claimed (turn) ──> admitted (turn, step)
 *       │ │         ├─────────────> cancelled (cause), rejected (reason), dead (reason)
 *       │ └─ held   │
 *       └───────────┴─────────────> cancelled (cause), expired
 *
 * Rule 1: this is about the message, and stops at its admission. It never says how a turn ended, or that anything in
 *         an interval happened because of the message.
 * Rule 2: the table STATES is the whole life; a type that is not in it changes no state.
 * Rule 3: only a waking message is held. One that wakes nobody, or is not due, is queued at an idle whoever else is
 *         held.
 */

import type { Event } from "./event.js";
import type { JsonMap } from "./reading.js";
import type { InboxQueuedEvent, MessageRecord, MessageState } from "./wire.js";

type Said = "turn" | "step" | "cause" | "reason";

/** Event type -> the state it puts its message in, and the fields of the event that belong to the record. */
const STATES: Readonly<Record<string, readonly [MessageState, ...Said[]]>> = {
  "inbox/claimed": ["claimed", "turn"],
  "user/message": ["admitted", "turn", "step"],
  "inbox/cancelled": ["cancelled", "cause"],
  "inbox/rejected": ["rejected", "reason"],
  "inbox/expired": ["expired"],
  "inbox/dead": ["dead", "reason"],
};

/** A message as its events tell it, one after another. */
export interface Life {
  readonly record: MessageRecord;
  /** It is a follow-up or a steer, not injected context. */
  readonly wakes: boolean;
  /** Its time has come, if it has one. */
  readonly due: boolean;
}

/** The life that begins with a message's `inbox/queued`. */
export function queued({ data, time }: InboxQueuedEvent): Life {
  const due = typeof data.notBefore !== "number" || data.notBefore <= time;
  return { record: { messageId: data.messageId, state: "queued" }, wakes: data.wake === true, due };
}

/** The life after one more event. */
export function lifeAfter(life: Life, event: Event): Life {
  const { record } = life;
  if (names(event.data as JsonMap, record.messageId)) {
    return lifeAfterOwn(life, event);
  }
  if (event.type === "agent/status" && event.data.held && record.state === "queued" && life.wakes && life.due) {
    // A waking message that is still queued at an idle can only wait behind the hold.
    return { ...life, record: { ...record, state: "held" } };
  }
  if (event.type === "inbox/released" && record.state === "held") {
    return { ...life, record: { ...record, state: "queued" } };
  }
  return life;
}

function lifeAfterOwn(life: Life, event: Event): Life {
  if (event.type === "inbox/queued") {
    return queued(event);
  }
  if (event.type === "inbox/due" || event.type === "inbox/moved") {
    return { ...life, due: true };
  }
  const row = Object.hasOwn(STATES, event.type) ? STATES[event.type] : undefined;
  if (row === undefined) {
    return life;
  }
  const [state, ...said] = row;
  const data = event.data as JsonMap;
  const known = said.filter((name) => data[name] !== undefined && data[name] !== null);
  const own = Object.fromEntries(known.map((name) => [name, data[name]]));
  return { ...life, record: { messageId: life.record.messageId, state, ...own } };
}

function names(data: JsonMap, messageId: string): boolean {
  const many = data["messageIds"];
  return data["messageId"] === messageId || (Array.isArray(many) && many.includes(messageId));
}
