/**
 * mailslot: push a letter through, hear it drop. The sound proves only that it is inside.
 *
 *     import { Client } from "mailslot";
 *
 *     const session = new Client({ baseUrl: "http://127.0.0.1:8080" }).session("demo");
 *     const receipt = await session.prompt("hello");      // it is inside; nothing more is said
 *     const result = await session.run("and now?");       // an interval that you own, through the next idle
 *     console.log(result.finalResponse);
 *
 * What can go wrong is one tree, `MailslotError`.
 *
 * @module
 */

export {
  Client,
  DEFAULT_URL,
  Exclusive,
  Session,
  SessionGoal,
  type ClientOptions,
  type EventOptions,
  type GoalOptions,
  type Interruptible,
  type Limited,
  type RunOptions,
} from "./client.js";
export {
  BadAnswer,
  CursorExpired,
  MailslotError,
  OutcomeUnknown,
  Refused,
  RunTimeout,
  TransportLost,
  type Refusal,
} from "./errors.js";
export { isEvent, type Delta, type Event, type Item } from "./event.js";
export { type RunResult } from "./interval.js";
export { type Content, type PromptOptions, type Queue } from "./operation.js";
export { Run } from "./run.js";
export { type Settings } from "./settings.js";
export { type Fetch } from "./transport.js";
export type {
  Budgets,
  CancelAnswer,
  CloseAnswer,
  DeadLetter,
  DeadMessage,
  Delivery,
  Durability,
  EraseAnswer,
  Goal,
  GoalReason,
  Image,
  Level,
  MessageRecord,
  MessageState,
  QueuedMessage,
  Receipt,
  Source,
  StoreReceipt,
  Text,
  Usage,
} from "./wire.js";
