/**
 * The shapes on the wire. Generated from contracts/schemas by `npm run types`; do not edit.
 */

/**
 * Every problem code of the public doors.
 */
export type Code =
  | "bad-input"
  | "expired"
  | "unauthorized"
  | "forbidden"
  | "not-found"
  | "method-not-allowed"
  | "already-claimed"
  | "already-settled"
  | "already-answered"
  | "not-open"
  | "not-held"
  | "not-dead"
  | "busy"
  | "idle"
  | "turn-mismatch"
  | "closed"
  | "goal-exists"
  | "session-exists"
  | "not-allowed"
  | "cursor-expired"
  | "revision"
  | "too-large"
  | "conflict"
  | "queue-full"
  | "rate-limited"
  | "internal"
  | "store-refused"
  | "outcome-unknown";
/**
 * Where a message is in its life; `held` is queued behind a hold.
 */
export type MessageState = "queued" | "held" | "claimed" | "admitted" | "rejected" | "cancelled" | "expired" | "dead";
/**
 * How a message wants to reach the agent.
 */
export type Delivery = "queue" | "steer" | "inject";
/**
 * How well a receipt's message is kept (semantics M2).
 */
export type Durability = "memory" | "fsync" | "replicated";
export type Event =
  | SessionCreatedEvent
  | InboxQueuedEvent
  | InboxClaimedEvent
  | InboxReplacedEvent
  | InboxMovedEvent
  | InboxCancelledEvent
  | InboxRejectedEvent
  | InboxExpiredEvent
  | InboxDeadEvent
  | InboxDueEvent
  | InboxHeldEvent
  | InboxReleasedEvent
  | AgentStatusEvent
  | TurnStartEvent
  | TurnEndEvent
  | TurnRecoveredEvent
  | StepStartEvent
  | StepEndEvent
  | UserMessageEvent
  | AssistantMessageEvent
  | ToolCallEvent
  | ToolResultEvent
  | LlmRetryEvent
  | CancelRequestedEvent
  | GoalChangeEvent
  | SubagentStartedEvent
  | SubagentDetachedEvent
  | SubagentSettledEvent
  | ApprovalRequestedEvent
  | ApprovalAnsweredEvent
  | UsageRecordedEvent
  | CompactionDoneEvent
  | SessionClosedEvent;
export type GoalPatch = GoalEdit | GoalOperate;
/**
 * @minItems 1
 * @maxItems 1000
 */
export type PromptBatch = Prompt[];
export type PromptBatchItem = Receipt | Problem;

/**
 * One of each.
 */
export interface Wire {
  Aborted?: Aborted;
  Accepted?: Accepted;
  AgentStatus?: AgentStatus;
  AgentStatusEvent?: AgentStatusEvent;
  ApprovalAnswered?: ApprovalAnswered;
  ApprovalAnsweredEvent?: ApprovalAnsweredEvent;
  ApprovalRequested?: ApprovalRequested;
  ApprovalRequestedEvent?: ApprovalRequestedEvent;
  AssistantDelta?: AssistantDelta;
  AssistantMessage?: AssistantMessage;
  AssistantMessageEvent?: AssistantMessageEvent;
  Blocked?: Blocked;
  Budgets?: Budgets;
  Cancel?: Cancel;
  CancelAnswer?: CancelAnswer;
  CancelRequested?: CancelRequested;
  CancelRequestedEvent?: CancelRequestedEvent;
  CloseAnswer?: CloseAnswer;
  Code?: Code;
  CompactionDone?: CompactionDone;
  CompactionDoneEvent?: CompactionDoneEvent;
  Completed?: Completed;
  DeadLetter?: DeadLetter;
  DeadMessage?: DeadMessage;
  DeadPage?: DeadPage;
  Delivery?: Delivery;
  Delta?: Delta;
  DeltaNotice?: DeltaNotice;
  Durability?: Durability;
  Envelope?: Envelope;
  EraseAnswer?: EraseAnswer;
  Event?: Event;
  EventPage?: EventPage;
  Fact?: Fact;
  Failed?: Failed;
  Gap?: Gap;
  GapNotice?: GapNotice;
  Goal?: Goal;
  GoalBudgets?: GoalBudgets;
  GoalChange?: GoalChange;
  GoalChangeEvent?: GoalChangeEvent;
  GoalEdit?: GoalEdit;
  GoalOperate?: GoalOperate;
  GoalPatch?: GoalPatch;
  GoalPut?: GoalPut;
  GoalReason?: GoalReason;
  GoalSpent?: GoalSpent;
  IdleAnswer?: IdleAnswer;
  Image?: Image;
  ImageBlock?: ImageBlock;
  InboxCancelled?: InboxCancelled;
  InboxCancelledEvent?: InboxCancelledEvent;
  InboxClaimed?: InboxClaimed;
  InboxClaimedEvent?: InboxClaimedEvent;
  InboxDead?: InboxDead;
  InboxDeadEvent?: InboxDeadEvent;
  InboxDue?: InboxDue;
  InboxDueEvent?: InboxDueEvent;
  InboxExpired?: InboxExpired;
  InboxExpiredEvent?: InboxExpiredEvent;
  InboxHeld?: InboxHeld;
  InboxHeldEvent?: InboxHeldEvent;
  InboxMoved?: InboxMoved;
  InboxMovedEvent?: InboxMovedEvent;
  InboxQueued?: InboxQueued;
  InboxQueuedEvent?: InboxQueuedEvent;
  InboxRejected?: InboxRejected;
  InboxRejectedEvent?: InboxRejectedEvent;
  InboxReleased?: InboxReleased;
  InboxReleasedEvent?: InboxReleasedEvent;
  InboxReplaced?: InboxReplaced;
  InboxReplacedEvent?: InboxReplacedEvent;
  IntakeEntry?: IntakeEntry;
  Interrupted?: Interrupted;
  JsonValue?: JsonValue;
  Level?: Level;
  LevelPage?: LevelPage;
  LlmRetry?: LlmRetry;
  LlmRetryEvent?: LlmRetryEvent;
  MaxTokens?: MaxTokens;
  MessagePatch?: MessagePatch;
  MessageRecord?: MessageRecord;
  MessageState?: MessageState;
  OtherBlock?: OtherBlock;
  OtherEnd?: OtherEnd;
  Problem?: Problem;
  Prompt?: Prompt;
  PromptBatch?: PromptBatch;
  PromptBatchItem?: PromptBatchItem;
  Provenance?: Provenance;
  QueuePage?: QueuePage;
  QueuedMessage?: QueuedMessage;
  Receipt?: Receipt;
  Redriven?: Redriven;
  SessionAnswer?: SessionAnswer;
  SessionClosed?: SessionClosed;
  SessionClosedEvent?: SessionClosedEvent;
  SessionCreate?: SessionCreate;
  SessionCreated?: SessionCreated;
  SessionCreatedEvent?: SessionCreatedEvent;
  Source?: Source;
  StepEnd?: StepEnd;
  StepEndEvent?: StepEndEvent;
  StepStart?: StepStart;
  StepStartEvent?: StepStartEvent;
  StoreReceipt?: StoreReceipt;
  SubagentDetached?: SubagentDetached;
  SubagentDetachedEvent?: SubagentDetachedEvent;
  SubagentSettled?: SubagentSettled;
  SubagentSettledEvent?: SubagentSettledEvent;
  SubagentStarted?: SubagentStarted;
  SubagentStartedEvent?: SubagentStartedEvent;
  Text?: Text;
  TextBlock?: TextBlock;
  ToolCall?: ToolCall;
  ToolCallAsked?: ToolCallAsked;
  ToolCallEvent?: ToolCallEvent;
  ToolFault?: ToolFault;
  ToolResult?: ToolResult;
  ToolResultEvent?: ToolResultEvent;
  TurnEnd?: TurnEnd;
  TurnEndEvent?: TurnEndEvent;
  TurnRecovered?: TurnRecovered;
  TurnRecoveredEvent?: TurnRecoveredEvent;
  TurnStart?: TurnStart;
  TurnStartEvent?: TurnStartEvent;
  Usage?: Usage;
  UsageRecorded?: UsageRecorded;
  UsageRecordedEvent?: UsageRecordedEvent;
  UserMessage?: UserMessage;
  UserMessageEvent?: UserMessageEvent;
}
/**
 * The turn was cancelled.
 */
export interface Aborted {
  cause: "user" | "parent" | "hook";
  kind: "aborted";
  [k: string]: unknown;
}
/**
 * What the broker door puts on `reply_to`: the receipt at its barest.
 */
export interface Accepted {
  messageId: string;
}
/**
 * Status of the whole agent. `held` says how many follow-ups and steers wait behind a hold.
 */
export interface AgentStatus {
  held?: number | null;
  status: "running" | "idle";
  [k: string]: unknown;
}
/**
 * Status of the whole agent. `held` says how many follow-ups and steers wait behind a hold.
 */
export interface AgentStatusEvent {
  data: AgentStatus;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "agent/status";
  v: number;
  [k: string]: unknown;
}
/**
 * The approval has its answer.
 */
export interface ApprovalAnswered {
  answer: "allow" | "deny";
  approvalId: string;
  by: string;
  [k: string]: unknown;
}
/**
 * The approval has its answer.
 */
export interface ApprovalAnsweredEvent {
  data: ApprovalAnswered;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "approval/answered";
  v: number;
  [k: string]: unknown;
}
/**
 * A tool call waits for a person's yes.
 */
export interface ApprovalRequested {
  approvalId: string;
  callId: string;
  question: string;
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * A tool call waits for a person's yes.
 */
export interface ApprovalRequestedEvent {
  data: ApprovalRequested;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "approval/requested";
  v: number;
  [k: string]: unknown;
}
/**
 * A piece of text that the model is saying right now.
 */
export interface AssistantDelta {
  step: number;
  text: string;
  turn: number;
  [k: string]: unknown;
}
/**
 * What the model said. `interrupted` marks the prefix that was visible when it was cancelled.
 */
export interface AssistantMessage {
  content: (TextBlock | ImageBlock | OtherBlock)[];
  interrupted?: boolean | null;
  model: string;
  step: number;
  toolCalls?: ToolCallAsked[] | null;
  turn: number;
  usage?: Usage | null;
  [k: string]: unknown;
}
/**
 * A text block; a model's may be empty.
 */
export interface TextBlock {
  text: string;
  type: "text";
  [k: string]: unknown;
}
/**
 * An image block.
 */
export interface ImageBlock {
  data?: string | null;
  mediaType: string;
  type: "image";
  url?: string | null;
  [k: string]: unknown;
}
/**
 * A block of a kind that this version does not know.
 */
export interface OtherBlock {
  type: string;
  [k: string]: unknown;
}
/**
 * A tool call that a model asked for.
 */
export interface ToolCallAsked {
  arguments: {
    [k: string]: JsonValue;
  };
  callId: string;
  name: string;
  [k: string]: unknown;
}
export interface JsonValue {
  [k: string]: unknown;
}
/**
 * What models used.
 */
export interface Usage {
  cost?: number | null;
  inputTokens: number;
  outputTokens: number;
  [k: string]: unknown;
}
/**
 * What the model said. `interrupted` marks the prefix that was visible when it was cancelled.
 */
export interface AssistantMessageEvent {
  data: AssistantMessage;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "assistant/message";
  v: number;
  [k: string]: unknown;
}
/**
 * The admission hook let nothing in.
 */
export interface Blocked {
  kind: "blocked";
  [k: string]: unknown;
}
/**
 * Limits for a goal's whole life; each is more than zero and at most its maximum.
 */
export interface Budgets {
  cost?: number | null;
  modelCalls?: number | null;
  rounds?: number | null;
  tokens?: number | null;
  turns?: number | null;
  wallSeconds?: number | null;
}
/**
 * Stop the open turn.
 */
export interface Cancel {
  cause?: "user" | "parent" | "hook";
  /**
   * What happens to what is queued: the agent goes on with it, it waits for a release, or it is cancelled.
   */
  queue?: "keep" | "hold" | "clear";
  /**
   * Only this turn; refused `not-open` when it is not the open one.
   */
  turn?: number | null;
}
/**
 * What the cancel came to.
 */
export interface CancelAnswer {
  /**
   * settled is only answered to a caller who waits for it.
   */
  outcome: "requested" | "nothing_to_cancel" | "settled";
  stillQueued: string[];
  /**
   * The turn that was named by the cancel.
   */
  turn?: number | null;
  [k: string]: unknown;
}
/**
 * Somebody wants the named turn to stop. `closing`: and the session to be closed once that is done.
 */
export interface CancelRequested {
  cause: "user" | "parent" | "hook";
  closing?: boolean | null;
  queue: "keep" | "hold" | "clear";
  turn?: number | null;
  [k: string]: unknown;
}
/**
 * Somebody wants the named turn to stop. `closing`: and the session to be closed once that is done.
 */
export interface CancelRequestedEvent {
  data: CancelRequested;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "cancel/requested";
  v: number;
  [k: string]: unknown;
}
/**
 * The session takes no more messages.
 */
export interface CloseAnswer {
  /**
   * false while its last turn still ends; `session/closed` follows at its idle.
   */
  closed: boolean;
  /**
   * The seq of its newest event.
   */
  cursor: number;
  sessionId: string;
  [k: string]: unknown;
}
/**
 * The transcript from one seq to another is replaced by a summary.
 */
export interface CompactionDone {
  from: number;
  summary: string;
  to: number;
  [k: string]: unknown;
}
/**
 * The transcript from one seq to another is replaced by a summary.
 */
export interface CompactionDoneEvent {
  data: CompactionDone;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "compaction/done";
  v: number;
  [k: string]: unknown;
}
/**
 * The model had its say.
 */
export interface Completed {
  kind: "completed";
  [k: string]: unknown;
}
/**
 * A turn was given up after too many crashes.
 */
export interface DeadLetter {
  /**
   * How often the turn was tried.
   */
  attempts: number;
  /**
   * What to redrive it by: letters are listed in its order, oldest first. It can stand in a path as it is.
   */
  letterId: string;
  /**
   * All that it had claimed, and what became of each: those that it had not admitted are dead and can be redriven.
   */
  messages: DeadMessage[];
  reason: string;
  sessionId: string;
  /**
   * When it was given up, in ms by the store's clock.
   */
  time: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * A message that died with the turn, and what it is now: `dead`, or what a redrive made of it.
 */
export interface DeadMessage {
  messageId: string;
  /**
   * Absent when nothing is known of it any more: it was redriven, settled, and its record's window is over.
   */
  state?: MessageState | null;
  [k: string]: unknown;
}
/**
 * Some dead letters; `next` is the `after` of the next page, null on the last.
 */
export interface DeadPage {
  letters: DeadLetter[];
  next: string | null;
  [k: string]: unknown;
}
/**
 * A transient notice: no seq, in no ledger, never moves a cursor.
 */
export interface Delta {
  data: AssistantDelta;
  sessionId: string;
  type: "assistant/delta";
  v: 1;
  [k: string]: unknown;
}
/**
 * A transient notice: no seq, in no ledger, never moves a cursor.
 */
export interface DeltaNotice {
  data: AssistantDelta;
  sessionId: string;
  type: "assistant/delta";
  v: 1;
  [k: string]: unknown;
}
/**
 * An event on its way. `time` is the store's clock in ms; `epoch` is the lease epoch it was written under.
 */
export interface Envelope {
  data: Fact;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: string;
  v: number;
  [k: string]: unknown;
}
/**
 * What stands in a ledger: written by this version or a later one, so what is not known is kept.
 */
export interface Fact {
  [k: string]: unknown;
}
/**
 * The session is closed, and gone once `erased` is true.
 */
export interface EraseAnswer {
  /**
   * false while its last turn still ends; it is erased after that, without being asked again.
   */
  erased: boolean;
  sessionId: string;
  /**
   * By the name of the store. There is one, `ledger`: the events, and everything that is kept beside them.
   */
  stores: {
    [k: string]: StoreReceipt;
  };
  [k: string]: unknown;
}
/**
 * What one store had of a session: whether it is gone from there, and how much that was.
 */
export interface StoreReceipt {
  erased: boolean;
  events?: number | null;
  /**
   * Those that a record was still kept of. Both are absent when somebody else erased it while this call waited.
   */
  messages?: number | null;
  [k: string]: unknown;
}
/**
 * The session exists. `depth` is 0 without a parent.
 */
export interface SessionCreatedEvent {
  data: SessionCreated;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "session/created";
  v: number;
  [k: string]: unknown;
}
/**
 * The session exists. `depth` is 0 without a parent.
 */
export interface SessionCreated {
  agent: string;
  depth: number;
  metadata: {
    [k: string]: JsonValue;
  };
  onFailure: "continue" | "hold";
  parent?: string | null;
  [k: string]: unknown;
}
/**
 * The message is in the inbox: this is what a receipt proves.
 */
export interface InboxQueuedEvent {
  data: InboxQueued;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/queued";
  v: number;
  [k: string]: unknown;
}
/**
 * The message is in the inbox: this is what a receipt proves.
 */
export interface InboxQueued {
  content: (TextBlock | ImageBlock | OtherBlock)[];
  expiresAt?: number | null;
  lane: "next-turn" | "next-step";
  messageId: string;
  metadata?: {
    [k: string]: JsonValue;
  } | null;
  notBefore?: number | null;
  redrive?: boolean | null;
  source: Provenance;
  wake: boolean;
  [k: string]: unknown;
}
/**
 * Where a message came from; a goal's names the goal, the revision and the round.
 */
export interface Provenance {
  goalId?: string | null;
  kind: string;
  revision?: number | null;
  round?: number | null;
  [k: string]: unknown;
}
/**
 * The turn took these messages, in the order they will enter. `step` is the step they will enter, absent
 * in the claim that opens the turn.
 */
export interface InboxClaimedEvent {
  data: InboxClaimed;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/claimed";
  v: number;
  [k: string]: unknown;
}
/**
 * The turn took these messages, in the order they will enter. `step` is the step they will enter, absent
 * in the claim that opens the turn.
 */
export interface InboxClaimed {
  messageIds: string[];
  step?: number | null;
  turn: number;
  [k: string]: unknown;
}
/**
 * The queued message has new content, in its old place.
 */
export interface InboxReplacedEvent {
  data: InboxReplaced;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/replaced";
  v: number;
  [k: string]: unknown;
}
/**
 * The queued message has new content, in its old place.
 */
export interface InboxReplaced {
  content: (TextBlock | ImageBlock | OtherBlock)[];
  messageId: string;
  [k: string]: unknown;
}
/**
 * The queued message waits in another lane, at the place of this event.
 */
export interface InboxMovedEvent {
  data: InboxMoved;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/moved";
  v: number;
  [k: string]: unknown;
}
/**
 * The queued message waits in another lane, at the place of this event.
 */
export interface InboxMoved {
  lane: "next-turn" | "next-step";
  messageId: string;
  [k: string]: unknown;
}
/**
 * The message will not be admitted, because somebody or something took it back.
 */
export interface InboxCancelledEvent {
  data: InboxCancelled;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/cancelled";
  v: number;
  [k: string]: unknown;
}
/**
 * The message will not be admitted, because somebody or something took it back.
 */
export interface InboxCancelled {
  cause: "withdrawn" | "cancel" | "preempted" | "stale" | "closed";
  messageId: string;
  [k: string]: unknown;
}
/**
 * The turn that claimed the message did not let it in.
 */
export interface InboxRejectedEvent {
  data: InboxRejected;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/rejected";
  v: number;
  [k: string]: unknown;
}
/**
 * The turn that claimed the message did not let it in.
 */
export interface InboxRejected {
  messageId: string;
  reason: string;
  turn: number;
  [k: string]: unknown;
}
/**
 * The message was still queued at its `expiresAt`.
 */
export interface InboxExpiredEvent {
  data: InboxExpired;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/expired";
  v: number;
  [k: string]: unknown;
}
/**
 * The message was still queued at its `expiresAt`.
 */
export interface InboxExpired {
  messageId: string;
  [k: string]: unknown;
}
/**
 * The turn that claimed the message gave up after crashes.
 */
export interface InboxDeadEvent {
  data: InboxDead;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/dead";
  v: number;
  [k: string]: unknown;
}
/**
 * The turn that claimed the message gave up after crashes.
 */
export interface InboxDead {
  attempts: number;
  messageId: string;
  reason: string;
  [k: string]: unknown;
}
/**
 * The message's `notBefore` has come; its place in the lane is this event.
 */
export interface InboxDueEvent {
  data: InboxDue;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/due";
  v: number;
  [k: string]: unknown;
}
/**
 * The message's `notBefore` has come; its place in the lane is this event.
 */
export interface InboxDue {
  messageId: string;
  [k: string]: unknown;
}
/**
 * Queued messages do not wake the agent from here on. Causes written so far: `cancel`, `failure`.
 */
export interface InboxHeldEvent {
  data: InboxHeld;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/held";
  v: number;
  [k: string]: unknown;
}
/**
 * Queued messages do not wake the agent from here on. Causes written so far: `cancel`, `failure`.
 */
export interface InboxHeld {
  cause: string;
  [k: string]: unknown;
}
/**
 * Queued messages wake again. Causes written so far: `submit`, `move`, `release`, `goal`, `redrive`.
 */
export interface InboxReleasedEvent {
  data: InboxReleased;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "inbox/released";
  v: number;
  [k: string]: unknown;
}
/**
 * Queued messages wake again. Causes written so far: `submit`, `move`, `release`, `goal`, `redrive`.
 */
export interface InboxReleased {
  cause: string;
  [k: string]: unknown;
}
/**
 * A turn is open.
 */
export interface TurnStartEvent {
  data: TurnStart;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "turn/start";
  v: number;
  [k: string]: unknown;
}
/**
 * A turn is open.
 */
export interface TurnStart {
  turn: number;
  [k: string]: unknown;
}
/**
 * The turn is closed. This is about the turn, not about any message.
 */
export interface TurnEndEvent {
  data: TurnEnd;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "turn/end";
  v: number;
  [k: string]: unknown;
}
/**
 * The turn is closed. This is about the turn, not about any message.
 */
export interface TurnEnd {
  reason: Completed | MaxTokens | Aborted | Blocked | Failed | Interrupted | OtherEnd;
  turn: number;
  usage?: Usage | null;
  [k: string]: unknown;
}
/**
 * A model answer of the turn was cut off at its token limit.
 */
export interface MaxTokens {
  kind: "max-tokens";
  [k: string]: unknown;
}
/**
 * The turn failed for good.
 */
export interface Failed {
  code: string;
  kind: "error";
  message: string;
  retryable: boolean;
  [k: string]: unknown;
}
/**
 * Recovery gave the turn up after too many crashes.
 */
export interface Interrupted {
  kind: "interrupted";
  [k: string]: unknown;
}
/**
 * An end that this version does not know: not a success (semantics L4).
 */
export interface OtherEnd {
  kind: string;
  [k: string]: unknown;
}
/**
 * A new owner goes on with an open turn. `attempt` is 1 + crashes.
 */
export interface TurnRecoveredEvent {
  data: TurnRecovered;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "turn/recovered";
  v: number;
  [k: string]: unknown;
}
/**
 * A new owner goes on with an open turn. `attempt` is 1 + crashes.
 */
export interface TurnRecovered {
  attempt: number;
  reason: "crash" | "handback" | "resume";
  turn: number;
  [k: string]: unknown;
}
/**
 * A model call is about to be made. Steps count from 1 in each turn.
 */
export interface StepStartEvent {
  data: StepStart;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "step/start";
  v: number;
  [k: string]: unknown;
}
/**
 * A model call is about to be made. Steps count from 1 in each turn.
 */
export interface StepStart {
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * The model call and the tool calls it asked for are over.
 */
export interface StepEndEvent {
  data: StepEnd;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "step/end";
  v: number;
  [k: string]: unknown;
}
/**
 * The model call and the tool calls it asked for are over.
 */
export interface StepEnd {
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * The message entered the transcript: only this proves consumption.
 */
export interface UserMessageEvent {
  data: UserMessage;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "user/message";
  v: number;
  [k: string]: unknown;
}
/**
 * The message entered the transcript: only this proves consumption.
 */
export interface UserMessage {
  content: (TextBlock | ImageBlock | OtherBlock)[];
  messageId: string;
  source: Provenance;
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * The call is started: from here on it may have had its effect.
 */
export interface ToolCallEvent {
  data: ToolCall;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "tool/call";
  v: number;
  [k: string]: unknown;
}
/**
 * The call is started: from here on it may have had its effect.
 */
export interface ToolCall {
  arguments: {
    [k: string]: JsonValue;
  };
  callId: string;
  name: string;
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * What the call came to.
 */
export interface ToolResultEvent {
  data: ToolResult;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "tool/result";
  v: number;
  [k: string]: unknown;
}
/**
 * What the call came to.
 */
export interface ToolResult {
  callId: string;
  content: (TextBlock | ImageBlock | OtherBlock)[];
  error?: ToolFault | null;
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * Why a tool call has no proper result.
 */
export interface ToolFault {
  code: string;
  message: string;
  [k: string]: unknown;
}
/**
 * A model call failed and is made again after the delay. Written before the wait.
 */
export interface LlmRetryEvent {
  data: LlmRetry;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "llm/retry";
  v: number;
  [k: string]: unknown;
}
/**
 * A model call failed and is made again after the delay. Written before the wait.
 */
export interface LlmRetry {
  attempt: number;
  code: string;
  delayMs: number;
  message: string;
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * The goal is at this revision.
 */
export interface GoalChangeEvent {
  data: GoalChange;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "goal/change";
  v: number;
  [k: string]: unknown;
}
/**
 * The goal is at this revision.
 */
export interface GoalChange {
  goal: Goal;
  operation: "create" | "edit" | "pause" | "resume" | "complete" | "block" | "clear";
  [k: string]: unknown;
}
/**
 * A goal as it stands.
 */
export interface Goal {
  budgets: GoalBudgets;
  goalId: string;
  objective: string;
  phase: "active" | "paused" | "blocked" | "complete";
  reason?: GoalReason | null;
  revision: number;
  /**
   * Rounds whose message was admitted.
   */
  rounds: number;
  spent: GoalSpent;
  [k: string]: unknown;
}
/**
 * The budgets that a goal has.
 */
export interface GoalBudgets {
  cost?: number | null;
  modelCalls?: number | null;
  rounds?: number | null;
  tokens?: number | null;
  turns?: number | null;
  wallSeconds?: number | null;
  [k: string]: unknown;
}
/**
 * Why a goal does not go on: paused has `kind`, blocked has `code` and `message`.
 */
export interface GoalReason {
  code?: string | null;
  kind?: string | null;
  message?: string | null;
  [k: string]: unknown;
}
/**
 * What a goal has spent of each budget; nothing yet when it is not named.
 */
export interface GoalSpent {
  cost?: number;
  modelCalls?: number;
  rounds?: number;
  tokens?: number;
  turns?: number;
  wallSeconds?: number;
  [k: string]: unknown;
}
/**
 * A child session works for this one.
 */
export interface SubagentStartedEvent {
  data: SubagentStarted;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "subagent/started";
  v: number;
  [k: string]: unknown;
}
/**
 * A child session works for this one.
 */
export interface SubagentStarted {
  callId?: string | null;
  childId: string;
  detached: boolean;
  [k: string]: unknown;
}
/**
 * The agent no longer waits for the child.
 */
export interface SubagentDetachedEvent {
  data: SubagentDetached;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "subagent/detached";
  v: number;
  [k: string]: unknown;
}
/**
 * The agent no longer waits for the child.
 */
export interface SubagentDetached {
  childId: string;
  [k: string]: unknown;
}
/**
 * The child's run is over.
 */
export interface SubagentSettledEvent {
  data: SubagentSettled;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "subagent/settled";
  v: number;
  [k: string]: unknown;
}
/**
 * The child's run is over.
 */
export interface SubagentSettled {
  childId: string;
  output?: string | null;
  stopReason: string;
  [k: string]: unknown;
}
/**
 * What one model call used.
 */
export interface UsageRecordedEvent {
  data: UsageRecorded;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "usage/recorded";
  v: number;
  [k: string]: unknown;
}
/**
 * What one model call used.
 */
export interface UsageRecorded {
  attempt: number;
  cost?: number | null;
  inputTokens: number;
  model: string;
  outputTokens: number;
  requestId?: string | null;
  step: number;
  turn: number;
  [k: string]: unknown;
}
/**
 * The session takes no more messages; its history stays readable.
 */
export interface SessionClosedEvent {
  data: SessionClosed;
  epoch: number;
  seq: number;
  sessionId: string;
  time: number;
  type: "session/closed";
  v: number;
  [k: string]: unknown;
}
/**
 * The session takes no more messages; its history stays readable.
 */
export interface SessionClosed {
  cause: string;
  [k: string]: unknown;
}
/**
 * Some events in order of seq; `next` is the `after` of the next page, null when there is none yet.
 */
export interface EventPage {
  events: Envelope[];
  next: number | null;
  [k: string]: unknown;
}
/**
 * What was asked for is no longer kept, or never was; these are the seqs that can be read.
 */
export interface Gap {
  newest: number;
  oldest: number;
  sessionId: string;
  [k: string]: unknown;
}
/**
 * What was asked for is no longer kept, or never was; these are the seqs that can be read.
 */
export interface GapNotice {
  newest: number;
  oldest: number;
  sessionId: string;
  [k: string]: unknown;
}
/**
 * Change a goal's objective or some of its budgets; what is not named stays.
 */
export interface GoalEdit {
  budgets?: Budgets | null;
  objective?: string | null;
}
/**
 * Do something to a goal. Only block takes a reason.
 */
export interface GoalOperate {
  code?: string | null;
  message?: string | null;
  operation: "pause" | "resume" | "complete" | "block";
}
/**
 * Create a goal.
 */
export interface GoalPut {
  budgets?: Budgets;
  objective: string;
}
/**
 * The agent is idle since `cursor`, or still running at the timeout.
 */
export interface IdleAnswer {
  /**
   * When idle, the seq of the first idle after the one asked about; when running, the newest seq.
   */
  cursor: number;
  reasons?: string[] | null;
  status: "running" | "idle";
  [k: string]: unknown;
}
/**
 * An image block: either the bytes as base64 or an address to fetch them from.
 */
export interface Image {
  data?: string | null;
  mediaType: string;
  type: "image";
  url?: string | null;
}
/**
 * What a backend puts on the broker door: a prompt that names its session.
 */
export interface IntakeEntry {
  /**
   * Which agent a session that does not exist yet gets.
   */
  agent?: string | null;
  content: string | (Text | Image)[];
  /**
   * false refuses an unknown session instead of creating it.
   */
  createSession?: boolean;
  delivery?: Delivery;
  /**
   * A steer is refused (`turn-mismatch`) unless this turn is open.
   */
  expectTurn?: number | null;
  /**
   * It expires if it is still queued then; a time that is over is refused (`expired`).
   */
  expiresAt?: number | null;
  /**
   * reject refuses it (`busy`) unless the agent is idle and no follow-up or steer is due or held.
   */
  ifBusy?: "reject" | null;
  /**
   * reject refuses a steer (`idle`) that would open a turn of its own.
   */
  ifIdle?: "reject" | null;
  /**
   * The sender's own id for the message; without one, ingest makes it.
   */
  messageId?: string | null;
  metadata?: {
    [k: string]: JsonValue;
  };
  /**
   * It waits, and neither wakes nor blocks anything, until then. A time that is over means now.
   */
  notBefore?: number | null;
  sessionId: string;
  source?: Source | null;
}
/**
 * A text block.
 */
export interface Text {
  text: string;
  type: "text";
}
/**
 * Provenance that a sender may claim. Messages of goals and children are made by the store alone.
 */
export interface Source {
  kind: "user" | "system" | "schedule" | "plugin";
}
/**
 * How the agent stands at `cursor`.
 */
export interface Level {
  /**
   * true when the session takes no more messages; absent while it does.
   */
  closed?: boolean | null;
  /**
   * Messages lost (positive) or settled twice (negative); anything but 0 is a defect (semantics M5).
   */
  conservation: number;
  /**
   * The seq of the newest event that the level counts.
   */
  cursor: number;
  goal?: Goal | null;
  /**
   * Follow-ups and steers that wait behind a hold.
   */
  held: number;
  /**
   * Why the queue is on hold; absent when it is not.
   */
  hold?: string | null;
  /**
   * Messages that are queued or claimed.
   */
  pending: number;
  /**
   * Why it is running, for people: `turn 4`, `2 queued`; empty when it is idle.
   */
  reasons: string[];
  sessionId: string;
  status: "running" | "idle";
  /**
   * The open turn.
   */
  turn?: number | null;
  usage: Usage;
  [k: string]: unknown;
}
/**
 * Some sessions; `next` is the `after` of the next page, null on the last.
 */
export interface LevelPage {
  next: string | null;
  sessions: Level[];
  [k: string]: unknown;
}
/**
 * Change a message that is still queued: give it new content, or steer with it.
 */
export interface MessagePatch {
  /**
   * The new content, in the message's old place.
   */
  content?: string | (Text | Image)[] | null;
  /**
   * steer moves it to the next step, at the place of the move.
   */
  delivery?: "steer" | null;
}
/**
 * What happened to a message. It never says how a turn ended.
 */
export interface MessageRecord {
  /**
   * Why it was cancelled.
   */
  cause?: string | null;
  /**
   * The seq of its `inbox/queued`, as in its receipt.
   */
  cursor?: number | null;
  /**
   * How it waits, or waited: a follow-up that was steered with is a steer from then on.
   */
  delivery?: Delivery | null;
  /**
   * false while it waits for its `notBefore`; absent once it does not wait.
   */
  due?: boolean | null;
  messageId: string;
  /**
   * Why it was rejected, or is dead.
   */
  reason?: string | null;
  state: MessageState;
  /**
   * The step that admitted it.
   */
  step?: number | null;
  /**
   * The turn that took it, and admitted it if it is admitted.
   */
  turn?: number | null;
}
/**
 * The body of every refusal (RFC 9457). Readers skip members they do not know.
 */
export interface Problem {
  code: Code;
  /**
   * one sentence that names the thing and its state
   */
  detail: string;
  /**
   * with outcome-unknown: repeat with this id
   */
  messageId?: string | null;
  /**
   * with cursor-expired: the newest seq kept
   */
  newest?: number | null;
  /**
   * with cursor-expired: the oldest seq kept
   */
  oldest?: number | null;
  /**
   * do not repeat sooner than this
   */
  retryAfterMs?: number | null;
  /**
   * the same request, unchanged, may succeed later
   */
  retryable: boolean;
  status: number;
  /**
   * one line for the code, always the same
   */
  title: string;
  /**
   * urn:mailslot:problem:<code>
   */
  type: string;
  [k: string]: unknown;
}
/**
 * What a sender says to one session.
 */
export interface Prompt {
  content: string | (Text | Image)[];
  /**
   * false refuses an unknown session instead of creating it.
   */
  createSession?: boolean;
  delivery?: Delivery;
  /**
   * A steer is refused (`turn-mismatch`) unless this turn is open.
   */
  expectTurn?: number | null;
  /**
   * It expires if it is still queued then; a time that is over is refused (`expired`).
   */
  expiresAt?: number | null;
  /**
   * reject refuses it (`busy`) unless the agent is idle and no follow-up or steer is due or held.
   */
  ifBusy?: "reject" | null;
  /**
   * reject refuses a steer (`idle`) that would open a turn of its own.
   */
  ifIdle?: "reject" | null;
  /**
   * The sender's own id for the message; without one, ingest makes it.
   */
  messageId?: string | null;
  metadata?: {
    [k: string]: JsonValue;
  };
  /**
   * It waits, and neither wakes nor blocks anything, until then. A time that is over means now.
   */
  notBefore?: number | null;
  source?: Source | null;
}
/**
 * The message is durably queued, at the level that is named. Nothing else is said.
 */
export interface Receipt {
  /**
   * The seq of the message's `inbox/queued`; reading events after it shows what came next.
   */
  cursor: number;
  /**
   * true when the same message was accepted before and nothing was appended now.
   */
  duplicate: boolean;
  durability: Durability;
  messageId: string;
}
/**
 * What waits, in the order it would be taken: claimed first, then the next step's, then the next turns', then what
 * is not due. `next` is the `after` of the next page, null on the last.
 */
export interface QueuePage {
  messages: QueuedMessage[];
  next: string | null;
  [k: string]: unknown;
}
/**
 * A message that is queued or claimed, with what it would say if it entered now.
 */
export interface QueuedMessage {
  /**
   * Why it was cancelled.
   */
  cause?: string | null;
  content: (TextBlock | ImageBlock | OtherBlock)[];
  /**
   * The seq of its `inbox/queued`, as in its receipt.
   */
  cursor?: number | null;
  /**
   * How it waits, or waited: a follow-up that was steered with is a steer from then on.
   */
  delivery?: Delivery | null;
  /**
   * false while it waits for its `notBefore`; absent once it does not wait.
   */
  due?: boolean | null;
  expiresAt?: number | null;
  messageId: string;
  metadata?: {
    [k: string]: JsonValue;
  } | null;
  notBefore?: number | null;
  /**
   * Why it was rejected, or is dead.
   */
  reason?: string | null;
  /**
   * It was dead and is queued again.
   */
  redrive?: boolean | null;
  source: Provenance;
  state: MessageState;
  /**
   * The step that admitted it.
   */
  step?: number | null;
  /**
   * The turn that took it, and admitted it if it is admitted.
   */
  turn?: number | null;
}
/**
 * The letter's dead messages are queued again, each under its own id.
 */
export interface Redriven {
  receipts: Receipt[];
  [k: string]: unknown;
}
/**
 * The session is there.
 */
export interface SessionAnswer {
  /**
   * The seq of its newest event.
   */
  cursor: number;
  sessionId: string;
  [k: string]: unknown;
}
/**
 * Make a session.
 */
export interface SessionCreate {
  agent?: string;
  metadata?: {
    [k: string]: JsonValue;
  };
  /**
   * hold puts the queue on hold after a turn that failed, was blocked or was given up.
   */
  onFailure?: "continue" | "hold";
  /**
   * The caller's own id for the session; without one, ingest makes it.
   */
  sessionId?: string | null;
}
