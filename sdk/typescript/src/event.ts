/**
 * What a session's stream carries: events, which are facts, and deltas, which are not.
 *
 *     Event    seq 1, 2, 3 … without gaps; kept in the ledger; reading it again gives the same
 *     Delta    a piece of text that the model is saying right now; no seq; may be lost
 *
 * Both are passed on as they came, with every field. `Event` is a union over `type`: checking it tells what `data`
 * is. A newer server may send types that are not in it, so leave room for what you do not know.
 */

import { BadAnswer } from "./errors.js";
import { read, type JsonMap } from "./reading.js";
import type { DeltaNotice, Event } from "./wire.js";

export type { Event };

/** A piece of text that the model is saying right now. The whole text comes as an event later. */
export type Delta = DeltaNotice;

export type Item = Event | Delta;

/** The highest envelope version that this package reads. */
const ENVELOPE_VERSION = 1;

/** Whether this is an event, and no delta. */
export function isEvent(item: Item): item is Event {
  return "seq" in item;
}

/** The event in an envelope of this session. */
export function readEvent(envelope: JsonMap, sessionId: string): Event {
  check(envelope, sessionId);
  return read<Event>(
    envelope,
    { seq: "number", type: "string", time: "number", epoch: "number", data: "object" },
    "an event",
  );
}

/** The delta in a notice of this session. */
export function readDelta(notice: JsonMap, sessionId: string): Delta {
  check(notice, sessionId);
  const delta = read<Delta>(notice, { type: "string", data: "object" }, "a delta");
  read(delta.data, { turn: "number", step: "number", text: "string" }, "a delta");
  return delta;
}

function check(envelope: JsonMap, sessionId: string): void {
  const { v, sessionId: found } = read<{ v: number; sessionId: string }>(
    envelope,
    { v: "number", sessionId: "string" },
    "an envelope",
  );
  if (v > ENVELOPE_VERSION) {
    throw new BadAnswer(
      `envelope version ${v} is newer than ${ENVELOPE_VERSION}, the newest known here; upgrade mailslot`,
    );
  }
  if (found !== sessionId) {
    throw new BadAnswer(`asked for session ${sessionId}, got an event of session ${found}`);
  }
}
