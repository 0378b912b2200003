/**
 * The client.
 *
 *     Client ──> Session ──> prompt, steer, inject             a receipt: the message is kept, and nothing more
 *            │         ├───> queue, message                     what waits; what happened to one message
 *            │         ├───> replace, move, withdraw            changes of what is still queued
 *            │         ├───> events, status, whenIdle           what the whole agent does
 *            │         ├───> run, runStreamed                   an interval that the caller owns
 *            │         ├───> exclusive                          the same, while nobody else is at work
 *            │         ├───> cancel, release, close, delete
 *            │         └───> goal                               a durable objective
 *            └─> sessions, dead, redrive
 *
 * Rule 1: a receipt is never paired with a result, here or anywhere. Who wants to own what follows uses `run`.
 * Rule 2: nothing is decided here: each method is one operation.
 * Rule 3: every method takes a `signal`. When it fires, waiting ends with its reason, and the agent goes on.
 */

import { Address } from "./address.js";
import type { Event, Item } from "./event.js";
import { insisted } from "./exclusive.js";
import { Following } from "./following.js";
import { newId } from "./ids.js";
import type { RunResult } from "./interval.js";
import * as operation from "./operation.js";
import type { Content, Draft, Line, PromptOptions, Queue } from "./operation.js";
import { Patience } from "./patience.js";
import { Run, type Manner } from "./run.js";
import { DEFAULTS, type Settings } from "./settings.js";
import { Subscription } from "./subscription.js";
import { Transport, type Fetch } from "./transport.js";
import type {
  Budgets,
  CancelAnswer,
  CloseAnswer,
  DeadLetter,
  EraseAnswer,
  Goal,
  GoalEdit,
  GoalOperate,
  Level,
  MessageRecord,
  QueuedMessage,
  Receipt,
} from "./wire.js";

/** Where `mailslot up` listens. */
export const DEFAULT_URL = "http://127.0.0.1:8080";

export interface ClientOptions {
  /** Where the server is: `http://127.0.0.1:8080` without one. */
  readonly baseUrl?: string;
  /** Shown to the server with every request. */
  readonly token?: string | undefined;
  /** What carries requests out: the platform's `fetch` without one. */
  readonly fetch?: Fetch;
  /** Limits that are to differ from the defaults. */
  readonly settings?: Partial<Settings>;
}

/** Who may end a wait. */
export interface Interruptible {
  readonly signal?: AbortSignal | undefined;
}

/** Who may end a wait, and how long it may take: `RunTimeout` after that. */
export interface Limited extends Interruptible {
  readonly timeoutMs?: number | undefined;
}

export interface RunOptions extends Limited {
  /** Leaving the run also stops the turn that took its message, and no other. */
  readonly cancelOnAbort?: boolean;
}

export interface EventOptions extends Interruptible {
  /** Only events after this seq. */
  readonly after?: number;
  /** Also what the model says while it says it. */
  readonly deltas?: boolean;
}

/** A mailslot server. */
export class Client {
  readonly #transport: Transport;

  constructor({ baseUrl = DEFAULT_URL, token, fetch, settings }: ClientOptions = {}) {
    this.#transport = new Transport(baseUrl, token, fetch, { ...DEFAULTS, ...settings });
  }

  /**
   * The session of that id, or one with a new id; nothing is sent yet.
   *
   * It exists from its first message on. With an `agent`, it is made with that agent before; refused
   * `session-exists` when it has another.
   */
  session(id: string = newId(), options: { readonly agent?: string } = {}): Session {
    return new Session(this.#transport, new Address(id, options.agent));
  }

  /** The level of every session. */
  sessions(options: Interruptible & { readonly status?: "running" | "idle" } = {}): AsyncIterableIterator<Level> {
    return new Following(
      (signal) => operation.levels(lineOf(this.#transport, { signal }), options.status),
      options.signal,
    );
  }

  /** Turns that were given up after too many crashes, oldest first, with the messages that died with them. */
  dead(options: Interruptible = {}): AsyncIterableIterator<DeadLetter> {
    return new Following((signal) => operation.dead(lineOf(this.#transport, { signal })), options.signal);
  }

  /** Queue a letter's dead messages again, each under its id; refused `not-dead` when none is dead any more. */
  async redrive(letterId: string, options: Interruptible = {}): Promise<Receipt[]> {
    return await operation.redrive(lineOf(this.#transport, options), letterId);
  }
}

/** One agent's durable conversation. */
export class Session {
  /** The session's goal. */
  readonly goal: SessionGoal;
  readonly #transport: Transport;
  readonly #address: Address;

  /** Made by `client.session`. */
  constructor(transport: Transport, address: Address) {
    this.#transport = transport;
    this.#address = address;
    this.goal = new SessionGoal(transport, address);
  }

  /** The session's id. */
  get id(): string {
    return this.#address.sessionId;
  }

  /** Send a message. The receipt proves that it is durably queued, and nothing else. */
  async prompt(content: Content, options: PromptOptions & Interruptible = {}): Promise<Receipt> {
    return await operation.prompt(this.#line(options), this.#address, operation.draft(content, options));
  }

  /** Send a message that joins the running turn at its next step, or wakes the agent. */
  async steer(content: Content, options: Omit<PromptOptions, "delivery"> & Interruptible = {}): Promise<Receipt> {
    return await this.prompt(content, { ...options, delivery: "steer" });
  }

  /** Leave something for the agent to see at its next step; it does not wake it. */
  async inject(
    content: Content,
    options: Omit<PromptOptions, "delivery" | "ifIdle" | "expectTurn"> & Interruptible = {},
  ): Promise<Receipt> {
    return await this.prompt(content, { ...options, delivery: "inject" });
  }

  /** What waits: claimed messages, the next step's, the next turns', and last those that are not due. */
  async queue(options: Interruptible = {}): Promise<QueuedMessage[]> {
    return await operation.queue(this.#line(options), this.#address);
  }

  /** What happened to a message, until some time after it settled. It never says how a turn ended. */
  async message(messageId: string, options: Interruptible = {}): Promise<MessageRecord> {
    return await operation.message(this.#line(options), this.#address, messageId);
  }

  /** Give a queued message new content in its old place; refused `already-claimed` or `already-settled`. */
  async replace(messageId: string, content: Content, options: Interruptible = {}): Promise<MessageRecord> {
    return await operation.change(this.#line(options), this.#address, messageId, { content });
  }

  /** Steer with a queued message: it joins the running turn at its next step, or wakes the agent. Ends a hold. */
  async move(messageId: string, options: Interruptible = {}): Promise<MessageRecord> {
    return await operation.change(this.#line(options), this.#address, messageId, { delivery: "steer" });
  }

  /** Take a queued message back; refused `already-claimed` or `already-settled`. */
  async withdraw(messageId: string, options: Interruptible = {}): Promise<MessageRecord> {
    return await operation.withdraw(this.#line(options), this.#address, messageId);
  }

  /**
   * Stop the open turn. What is queued goes on (`keep`), waits for a release (`hold`), or is cancelled too (`clear`).
   * `turn` stops only that one; `waitMs` waits so long for it to settle.
   */
  async cancel(
    options: Interruptible & { readonly queue?: Queue; readonly turn?: number; readonly waitMs?: number } = {},
  ): Promise<CancelAnswer> {
    return await operation.cancel(this.#line(options), this.#address, options);
  }

  /** End a hold: what is queued wakes the agent again. The newest seq; refused `not-held`. */
  async release(options: Interruptible = {}): Promise<number> {
    return await operation.release(this.#line(options), this.#address);
  }

  /**
   * Close the session for good: what is queued is cancelled, an open turn is stopped, nothing more is taken. Its
   * history stays readable.
   */
  async close(options: Interruptible = {}): Promise<CloseAnswer> {
    return await operation.close(this.#line(options), this.#address);
  }

  /**
   * Close the session and erase everything of it; `waitMs` waits so long for its last turn to end. Its id is free
   * afterwards. Refused `not-found` when it is not there (any more).
   */
  async delete(options: Interruptible & { readonly waitMs?: number } = {}): Promise<EraseAnswer> {
    return await operation.erase(this.#line(options), this.#address, options.waitMs);
  }

  /**
   * Every event after that seq, and then each as it comes, for ever.
   *
   * A cut connection is taken up again by itself, without loss and without anything coming twice. `CursorExpired` when
   * events after `after` are not kept any more. `deltas` adds the model's text as it is said.
   */
  events(options?: EventOptions & { readonly deltas?: false }): AsyncIterableIterator<Event>;
  events(options: EventOptions): AsyncIterableIterator<Item>;
  events(options: EventOptions = {}): AsyncIterableIterator<Item> {
    return new Following((signal) => this.#followed({ ...options, signal }), options.signal);
  }

  /** How the whole agent stands now. */
  async status(options: Interruptible = {}): Promise<Level> {
    return await operation.level(this.#line(options), this.#address);
  }

  /** Wait until the whole agent is idle; the seq of that idle. With `after`, an idle that is later than that seq. */
  async whenIdle(options: Limited & { readonly after?: number } = {}): Promise<number> {
    return await operation.rest(this.#line(options), this.#address, options.after);
  }

  /**
   * Send a message and own what happens from its receipt through the next idle of the whole agent.
   *
   * What the result tells is about that interval: other people's messages may be part of it. Leaving early
   * (`timeoutMs`, `signal`) leaves the agent at work. With `cancelOnAbort` it stops the turn that took this message,
   * and no other; a message that no turn has taken yet stays queued.
   */
  async run(content: Content, options: RunOptions = {}): Promise<RunResult> {
    return await finished(this.runStreamed(content, options));
  }

  /** The same as `run`, event by event; `.result` is there after the last one. */
  runStreamed(content: Content, options?: RunOptions & { readonly deltas?: false }): Run<Event>;
  runStreamed(content: Content, options: RunOptions & { readonly deltas: boolean }): Run<Item>;
  runStreamed(content: Content, options: RunOptions & { readonly deltas?: boolean } = {}): Run<Item> {
    return started(this.#transport, this.#address, operation.draft(content), options, undefined);
  }

  /**
   * Run while nobody else is at work: `await session.exclusive((alone) => alone.run("…"))`.
   *
   * Each message that is sent through what `work` gets is refused by the server unless the agent is idle and nothing is
   * queued, in the act that would queue it. It is then sent again once the agent is idle, for at most `timeoutMs` a
   * message; after that the refusal is thrown (`Refused`, code `busy`: nothing was kept). So the intervals of two
   * exclusive runs never overlap, whichever clients they belong to.
   *
   * It is not a lock. Who sends without it is not kept out: such a message joins the interval like any other. Nobody is
   * first in line: of those who wait, any may be next, also between two runs of the same `work`.
   */
  async exclusive<T>(
    work: (alone: Exclusive) => Promise<T> | T,
    options: { readonly timeoutMs?: number } = {},
  ): Promise<T> {
    return await work(new Exclusive(this.#transport, this.#address, options.timeoutMs));
  }

  async *#followed(options: EventOptions): AsyncGenerator<Item, void> {
    const { patience } = this.#line(options);
    const { after = 0, deltas = false } = options;
    const subscription = new Subscription(this.#transport, patience, this.#address, after, deltas);
    try {
      for (;;) {
        yield* await subscription.receive();
      }
    } finally {
      subscription.close();
    }
  }

  #line(options: Limited): Line {
    return lineOf(this.#transport, options);
  }
}

/** What `session.exclusive` gives: messages that are sent only while nobody else is at work. */
export class Exclusive {
  readonly #transport: Transport;
  readonly #address: Address;
  readonly #patienceMs: number | undefined;

  /** Made by `session.exclusive`. */
  constructor(transport: Transport, address: Address, patienceMs: number | undefined) {
    this.#transport = transport;
    this.#address = address;
    this.#patienceMs = patienceMs;
  }

  /** See `Session.prompt`. */
  async prompt(
    content: Content,
    options: Pick<PromptOptions, "messageId" | "source" | "metadata"> & Interruptible = {},
  ): Promise<Receipt> {
    const message = operation.draft(content, { ...options, ifBusy: "reject" });
    const line = lineOf(this.#transport, options);
    const submit = (): Promise<Receipt> => operation.prompt(line, this.#address, message);
    return await insisted(line, this.#address, this.#patienceMs, 0, submit);
  }

  /** See `Session.run`. Its `timeoutMs` is about all of it, the waiting included. */
  async run(content: Content, options: RunOptions = {}): Promise<RunResult> {
    return await finished(this.runStreamed(content, options));
  }

  /** See `Session.runStreamed`. */
  runStreamed(content: Content, options?: RunOptions & { readonly deltas?: false }): Run<Event>;
  runStreamed(content: Content, options: RunOptions & { readonly deltas: boolean }): Run<Item>;
  runStreamed(content: Content, options: RunOptions & { readonly deltas?: boolean } = {}): Run<Item> {
    const message = operation.draft(content, { ifBusy: "reject" });
    return started(this.#transport, this.#address, message, options, { patienceMs: this.#patienceMs });
  }
}

/** What a change of a goal may say: it is refused (`revision`) unless the goal is at the revision that you saw. */
export interface GoalOptions extends Interruptible {
  readonly revision?: number;
}

/** A session's durable objective. */
export class SessionGoal {
  readonly #transport: Transport;
  readonly #address: Address;

  /** Made by the session. */
  constructor(transport: Transport, address: Address) {
    this.#transport = transport;
    this.#address = address;
  }

  /** Give the session a goal, which the agent goes on with by itself; refused `goal-exists`. */
  async set(objective: string, options: Interruptible & { readonly budgets?: Budgets } = {}): Promise<Goal> {
    const { budgets } = options;
    const body = budgets === undefined ? { objective } : { objective, budgets };
    return await operation.setGoal(lineOf(this.#transport, options), this.#address, body);
  }

  /** The goal; undefined when there is none. */
  async get(options: Interruptible = {}): Promise<Goal | undefined> {
    return await operation.goal(lineOf(this.#transport, options), this.#address);
  }

  /** Change the objective or the budgets. */
  async edit(
    edit: { readonly objective?: string; readonly budgets?: Budgets },
    options: GoalOptions = {},
  ): Promise<Goal> {
    return await this.#patch(edit, options);
  }

  /** Stop going on, until `resume`. */
  async pause(options: GoalOptions = {}): Promise<Goal> {
    return await this.#patch({ operation: "pause" }, options);
  }

  /** Go on. */
  async resume(options: GoalOptions = {}): Promise<Goal> {
    return await this.#patch({ operation: "resume" }, options);
  }

  /** The goal is reached. */
  async complete(options: GoalOptions = {}): Promise<Goal> {
    return await this.#patch({ operation: "complete" }, options);
  }

  /** The goal cannot go on, and why. */
  async block(options: GoalOptions & { readonly code?: string; readonly message?: string } = {}): Promise<Goal> {
    const { code = null, message = null } = options;
    return await this.#patch({ operation: "block", code, message }, options);
  }

  /** Take the goal away. */
  async clear(options: GoalOptions = {}): Promise<void> {
    await operation.clearGoal(lineOf(this.#transport, options), this.#address, options.revision);
  }

  async #patch(body: GoalEdit | GoalOperate, options: GoalOptions): Promise<Goal> {
    return await operation.patchGoal(lineOf(this.#transport, options), this.#address, body, options.revision);
  }
}

function lineOf(transport: Transport, { signal, timeoutMs }: Limited): Line {
  return { transport, patience: new Patience(transport.settings, signal).within(timeoutMs) };
}

function started(
  transport: Transport,
  address: Address,
  message: Draft,
  options: RunOptions & { readonly deltas?: boolean },
  alone: Manner["alone"],
): Run<Item> {
  const { deltas = false, cancelOnAbort = false, timeoutMs, signal } = options;
  const line = (own: AbortSignal): Line => lineOf(transport, { signal: own, timeoutMs });
  return new Run(line, address, message, { deltas, cancelOnAbort, alone }, signal);
}

async function finished(run: Run): Promise<RunResult> {
  for await (const _ of run);
  return run.result;
}
