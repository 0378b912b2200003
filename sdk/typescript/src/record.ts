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
 * Rule 2: the table STATES is the whole life; a type that is not in it changes nothing.
 */

import type { Event } from "./event.js";
import type { JsonMap } from "./reading.js";
import type { MessageRecord, MessageState } from "./wire.js";

type Said = "turn" | "step" | "cause" | "reason";

/** Event type -> the state it puts its message in, and the fields of the event that belong to the record. */
const STATES: Readonly<Record<string, readonly [MessageState, ...Said[]]>> = {
  "inbox/queued": ["queued"],
  "inbox/claimed": ["claimed", "turn"],
  "user/message": ["admitted", "turn", "step"],
  "inbox/cancelled": ["cancelled", "cause"],
  "inbox/rejected": ["rejected", "reason"],
  "inbox/expired": ["expired"],
  "inbox/dead": ["dead", "reason"],
};

/** The record after one more event. */
export function recordAfter(record: MessageRecord, event: Event): MessageRecord {
  const row = Object.hasOwn(STATES, event.type) ? STATES[event.type] : undefined;
  const data = event.data as JsonMap;
  if (row !== undefined && names(data, record.messageId)) {
    const [state, ...said] = row;
    const known = said.filter((name) => data[name] !== undefined && data[name] !== null);
    return { messageId: record.messageId, state, ...Object.fromEntries(known.map((name) => [name, data[name]])) };
  }
  if (record.state === "queued" && event.type === "agent/status" && event.data.held) {
    // A waking message that is still queued at an idle can only wait behind the hold.
    return { ...record, state: "held" };
  }
  if (record.state === "held" && event.type === "inbox/released") {
    return { ...record, state: "queued" };
  }
  return record;
}

function names(data: JsonMap, messageId: string): boolean {
  const many = data["messageIds"];
  return data["messageId"] === messageId || (Array.isArray(many) && many.includes(messageId));
}
