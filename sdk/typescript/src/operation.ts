/**
 * What a client can ask of the server in one exchange or a few.
 *
 * | request                                | again when its answer was lost? | because                                |
 * |----------------------------------------|---------------------------------|----------------------------------------|
 * | reads                                  | yes                             | they change nothing                    |
 * | prompt                                 | yes                             | its message id was made here           |
 * | replace                                | yes                             | the same content changes nothing       |
 * | withdraw, redrive                      | yes                             | the second is refused                  |
 * | close, erase                           | yes                             | the second finds what the first did    |
 * | cancel of a named turn, `queue: keep`  | yes                             | it can hit no other                    |
 * | other cancels, move, release, goals    | no                              | a second would come later than meant   |
 *
 * Rule 1: a change that may have been done and then met a refusal is `OutcomeUnknown`; reading tells what came of it.
 * Rule 2: a session is made with its agent before it is first written to; without an agent the server makes it.
 */

import { segment, type Address } from "./address.js";
import { Refused, RunTimeout } from "./errors.js";
import { newId } from "./ids.js";
import { DeadlinePassed, type Patience } from "./patience.js";
import { encode, optionalText, read, readAll, type JsonMap, type Shape } from "./reading.js";
import { asked, type Effect } from "./retry.js";
import type { Request, Transport } from "./transport.js";
import type {
  CancelAnswer,
  CloseAnswer,
  DeadLetter,
  Delivery,
  EraseAnswer,
  Goal,
  GoalEdit,
  GoalOperate,
  GoalPut,
  IdleAnswer,
  Image,
  Level,
  MessageRecord,
  QueuedMessage,
  Receipt,
  SessionAnswer,
  Source,
  Text,
} from "./wire.js";

/** A text, or blocks of text and images. */
export type Content = string | readonly (Text | Image)[];

/** What a cancel does to what is queued: the agent goes on with it, it waits for a release, or it is cancelled. */
export type Queue = "keep" | "hold" | "clear";

/** What a prompt can say beside its content. Times are milliseconds since 1970. */
export interface PromptOptions {
  /** The message's id; without one it gets one here, so that a lost answer is asked for again and never sends twice. */
  readonly messageId?: string;
  /** `queue`: a turn of its own. `steer`: the next step, waking. `inject`: the next step, not waking. */
  readonly delivery?: Delivery;
  /** Before this time it waits and does nothing. */
  readonly notBefore?: number;
  /** At this time it expires if it is still queued. */
  readonly expiresAt?: number;
  /** `reject`: refused `busy` unless nothing is under way. */
  readonly ifBusy?: "reject";
  /** `reject`: a steer is refused `idle` when it would open a turn. */
  readonly ifIdle?: "reject";
  /** A steer is refused `turn-mismatch` unless this turn is open. */
  readonly expectTurn?: number;
  readonly source?: Source;
  readonly metadata?: Readonly<Record<string, unknown>>;
}

/** A message to be sent as often as needed: its id and its body are there before the first attempt. */
export interface Draft {
  readonly messageId: string;
  readonly body: string;
}

/** Sessions, messages or letters asked for at once. */
const PAGE_COUNT = "100";

/** Who is asked, and how patiently. */
export interface Line {
  readonly transport: Transport;
  readonly patience: Patience;
}

const RECEIPT: Shape<Receipt> = { messageId: "string", cursor: "number", duplicate: "boolean", durability: "string" };
const RECORD: Shape<MessageRecord> = { messageId: "string", state: "string" };
const QUEUED: Shape<QueuedMessage> = { ...RECORD, content: "array", source: "object" };
const REST: Shape<IdleAnswer> = { status: "string", cursor: "number" };
const CANCEL: Shape<CancelAnswer> = { outcome: "string", stillQueued: "array" };
const CLOSE: Shape<CloseAnswer> = { closed: "boolean", cursor: "number" };
const ERASE: Shape<EraseAnswer> = { erased: "boolean", stores: "object" };
const LEVEL: Shape<Level> = {
  sessionId: "string",
  status: "string",
  reasons: "array",
  cursor: "number",
  pending: "number",
  held: "number",
  conservation: "number",
};
const GOAL: Shape<Goal> = {
  goalId: "string",
  revision: "number",
  objective: "string",
  phase: "string",
  rounds: "number",
  budgets: "object",
  spent: "object",
};
const LETTER: Shape<DeadLetter> = {
  letterId: "string",
  sessionId: "string",
  turn: "number",
  reason: "string",
  attempts: "number",
  time: "number",
  messages: "array",
};

/** A message to send; without an id it gets one here. */
export function draft(content: Content, options: PromptOptions = {}): Draft {
  const { messageId = newId(), delivery = "queue", notBefore, expiresAt, ifBusy, ifIdle, expectTurn } = options;
  const { source, metadata } = options;
  const body = encode({
    messageId,
    content,
    delivery,
    ...{ notBefore, expiresAt, ifBusy, ifIdle, expectTurn, source, metadata },
  });
  return { messageId, body };
}

// -- sessions ---------------------------------------------------------------------------------------------------

/** How the whole agent stands. */
export async function level(line: Line, address: Address): Promise<Level> {
  return read(await got(line, address.path()), LEVEL, "a level");
}

/** The level of every session, page by page. */
export async function* levels(line: Line, status: "running" | "idle" | undefined): AsyncGenerator<Level> {
  for await (const page of pages(line, "/v1/sessions", status === undefined ? {} : { status })) {
    yield* readAll(page["sessions"], LEVEL, "a level");
  }
}

/** Have the server have the session with its agent; the seq of its newest event. */
async function make(line: Line, address: Address): Promise<number> {
  const { sessionId, agent } = address;
  const body = encode(agent === undefined ? { sessionId } : { sessionId, agent });
  const answer = await asked(line.transport, line.patience, { method: "POST", path: "/v1/sessions", body });
  address.made = true;
  return read<SessionAnswer>(answer, { cursor: "number" }, "a session").cursor;
}

async function makeWithAgent(line: Line, address: Address): Promise<number | undefined> {
  return address.agent !== undefined && !address.made ? await make(line, address) : undefined;
}

/** The seq of the session's newest event; a session that does not exist is made. */
export async function arrive(line: Line, address: Address): Promise<number> {
  const made = await makeWithAgent(line, address);
  if (made !== undefined) {
    return made;
  }
  const found = await unlessMissing(level(line, address));
  return found === undefined ? await make(line, address) : found.cursor;
}

/** Close the session for good. */
export async function close(line: Line, address: Address): Promise<CloseAnswer> {
  const effect = safe(`the end of session ${address.sessionId}`);
  return read(await sent(line, { method: "POST", path: address.path("close") }, effect), CLOSE, "the end of a session");
}

/** Close the session and erase everything of it. */
export async function erase(line: Line, address: Address, waitMs: number | undefined): Promise<EraseAnswer> {
  const request: Request = { method: "DELETE", path: address.path(), query: waitQuery(waitMs) };
  const answer = await sent(line, request, safe(`the erasure of session ${address.sessionId}`), waitMs);
  address.made = false;
  return read(answer, ERASE, "an erasure");
}

// -- messages ---------------------------------------------------------------------------------------------------

/** Submit a message; the receipt proves that it is kept. */
export async function prompt(line: Line, address: Address, message: Draft): Promise<Receipt> {
  await makeWithAgent(line, address);
  const { messageId, body } = message;
  const effect: Effect = { names: `message ${messageId}`, repeat: "safe", messageId };
  return read(await sent(line, { method: "POST", path: address.path("prompt"), body }, effect), RECEIPT, "a receipt");
}

/** Everything that waits, in the order in which it would be taken. */
export async function queue(line: Line, address: Address): Promise<QueuedMessage[]> {
  const found: QueuedMessage[] = [];
  for await (const page of pages(line, address.path("messages"), {})) {
    found.push(...readAll(page["messages"], QUEUED, "a message"));
  }
  return found;
}

/** What happened to a message. */
export async function message(line: Line, address: Address, messageId: string): Promise<MessageRecord> {
  return read(await got(line, place(address, messageId)), RECORD, "a message");
}

/** Change a queued message. */
export async function change(
  line: Line,
  address: Address,
  messageId: string,
  body: { readonly content: Content } | { readonly delivery: "steer" },
): Promise<MessageRecord> {
  const request: Request = { method: "PATCH", path: place(address, messageId), body: encode(body) };
  const effect: Effect = {
    names: `the change of message ${messageId}`,
    repeat: "content" in body ? "safe" : "unsafe",
  };
  return read(await sent(line, request, effect), RECORD, "a message");
}

/** Take a queued message back. */
export async function withdraw(line: Line, address: Address, messageId: string): Promise<MessageRecord> {
  const request: Request = { method: "DELETE", path: place(address, messageId) };
  return read(await sent(line, request, safe(`the withdrawal of message ${messageId}`)), RECORD, "a message");
}

// -- the agent --------------------------------------------------------------------------------------------------

/** Stop the open turn, or the named one, and do to the queue what is said. */
export async function cancel(
  line: Line,
  address: Address,
  what: {
    readonly queue?: Queue | undefined;
    readonly turn?: number | undefined;
    readonly waitMs?: number | undefined;
  },
): Promise<CancelAnswer> {
  const { queue: policy = "keep", turn, waitMs } = what;
  const body = encode({ queue: policy, turn });
  const request: Request = { method: "POST", path: address.path("cancel"), query: waitQuery(waitMs), body };
  // Sent twice without naming a turn, the second could stop a later one; what was queued in between is not meant.
  const repeat = turn === undefined || policy !== "keep" ? "unsafe" : "safe";
  const effect: Effect = { names: `the cancel of session ${address.sessionId}`, repeat };
  return read(await sent(line, request, effect, waitMs), CANCEL, "the answer to a cancel");
}

/** End a hold; the newest seq. */
export async function release(line: Line, address: Address): Promise<number> {
  const effect: Effect = { names: `the release of session ${address.sessionId}`, repeat: "unsafe" };
  const answer = await sent(line, { method: "POST", path: address.path("release") }, effect);
  return read<{ cursor: number }>(answer, { cursor: "number" }, "the answer to a release").cursor;
}

/** Wait until the agent is idle; the seq of that idle, which is greater than `after`. */
export async function rest(line: Line, address: Address, after: number | undefined): Promise<number> {
  let seen: IdleAnswer | undefined;
  try {
    for (;;) {
      seen = await pollRest(line, address, after);
      // At its timeout a poll tells how the agent stands, which may be an idle that was known before.
      if (seen.status === "idle" && (after === undefined || seen.cursor > after)) {
        return seen.cursor;
      }
    }
  } catch (error) {
    throw error instanceof DeadlinePassed ? new RunTimeout(noIdle(address, after, seen)) : error;
  }
}

async function pollRest(line: Line, address: Address, after: number | undefined): Promise<IdleAnswer> {
  const { patience } = line;
  const { settings } = patience;
  const pollMs = patience.leftMs(settings.idlePollMs);
  const query = { timeout: (pollMs / 1000).toFixed(3), ...(after === undefined ? {} : { after: String(after) }) };
  const waitMs = pollMs + (patience.bounded ? settings.idleGraceMs : settings.requestTimeoutMs);
  const patient = patience.bounded ? patience.graced(waitMs) : patience;
  const request: Request = { method: "GET", path: address.path("idle"), query };
  return read(await asked(line.transport, patient, request, undefined, waitMs), REST, "the answer about idle");
}

function noIdle(address: Address, after: number | undefined, seen: IdleAnswer | undefined): string {
  if (seen?.status === "idle") {
    return `session ${address.sessionId} had no idle after seq ${after}: it was idle all the time`;
  }
  const reasons = seen?.reasons?.length ? ` (${seen.reasons.join(", ")})` : "";
  return `session ${address.sessionId} is still running${reasons}`;
}

// -- goals ------------------------------------------------------------------------------------------------------

/** The session's goal; undefined when it has none. */
export async function goal(line: Line, address: Address): Promise<Goal | undefined> {
  const found = await unlessMissing(got(line, address.path("goal")));
  return found === undefined ? undefined : read(found, GOAL, "a goal");
}

/** Give the session a goal. */
export async function setGoal(line: Line, address: Address, body: GoalPut): Promise<Goal> {
  await makeWithAgent(line, address);
  return read(await changeGoal(line, address, { method: "PUT", body: encode(body) }, undefined), GOAL, "a goal");
}

/** Edit the goal or do something to it, if it is still at the revision that the caller saw. */
export async function patchGoal(
  line: Line,
  address: Address,
  body: GoalEdit | GoalOperate,
  revision: number | undefined,
): Promise<Goal> {
  return read(await changeGoal(line, address, { method: "PATCH", body: encode(body) }, revision), GOAL, "a goal");
}

/** Take the goal away. */
export async function clearGoal(line: Line, address: Address, revision: number | undefined): Promise<void> {
  await changeGoal(line, address, { method: "DELETE" }, revision);
}

async function changeGoal(
  line: Line,
  address: Address,
  request: Pick<Request, "method" | "body">,
  revision: number | undefined,
): Promise<JsonMap> {
  const headers: Record<string, string> = revision === undefined ? {} : { "if-match": `"${revision}"` };
  const effect: Effect = { names: `the change of the goal of session ${address.sessionId}`, repeat: "unsafe" };
  return await sent(line, { ...request, path: address.path("goal"), headers }, effect);
}

// -- what is dead -----------------------------------------------------------------------------------------------

/** Every dead letter, oldest first, page by page. */
export async function* dead(line: Line): AsyncGenerator<DeadLetter> {
  for await (const page of pages(line, "/v1/dead", {})) {
    yield* readAll(page["letters"], LETTER, "a dead letter");
  }
}

/** Queue a letter's dead messages again; a receipt for each. */
export async function redrive(line: Line, letterId: string): Promise<Receipt[]> {
  const request: Request = { method: "POST", path: `/v1/dead/${segment(letterId)}/redrive` };
  const answer = await sent(line, request, safe(`the redrive of letter ${letterId}`));
  return readAll(answer["receipts"], RECEIPT, "a receipt");
}

// -- asking -----------------------------------------------------------------------------------------------------

async function got(line: Line, path: string, query: Readonly<Record<string, string>> = {}): Promise<JsonMap> {
  return await asked(line.transport, line.patience, { method: "GET", path, query });
}

async function sent(line: Line, request: Request, effect: Effect, waitMs = 0): Promise<JsonMap> {
  const timeoutMs = line.patience.settings.requestTimeoutMs + waitMs;
  return await asked(line.transport, line.patience, request, effect, timeoutMs);
}

async function* pages(line: Line, path: string, query: Readonly<Record<string, string>>): AsyncGenerator<JsonMap> {
  let after: string | undefined;
  do {
    const page = await got(line, path, { ...query, limit: PAGE_COUNT, ...(after === undefined ? {} : { after }) });
    yield page;
    after = optionalText(page, "next");
  } while (after !== undefined);
}

async function unlessMissing<T>(asking: Promise<T>): Promise<T | undefined> {
  try {
    return await asking;
  } catch (error) {
    if (error instanceof Refused && error.code === "not-found") {
      return undefined;
    }
    throw error;
  }
}

function safe(names: string): Effect {
  return { names, repeat: "safe" };
}

function place(address: Address, messageId: string): string {
  return address.path("messages", segment(messageId));
}

function waitQuery(waitMs: number | undefined): Record<string, string> {
  return waitMs === undefined ? {} : { wait: String(waitMs / 1000) };
}
