/**
 * A run: an interval of activity that the caller owns.
 *
 *     arrive ──> subscribe ──> submit ──> collect … through the next idle ──> result
 *                   ^            │ refused `busy`, for one that is to be alone
 *                   └── wait <───┘
 *
 * Rule 1: the subscription stands before the message is sent, so nothing that follows the receipt can be missed.
 *         Whether the message's first events or its receipt arrive first does not matter.
 * Rule 2: it begins at the session's newest event of that moment: never at a cursor that somebody kept.
 * Rule 3: leaving a run leaves the agent alone. Only `cancelOnAbort` stops it, and then the turn that took the run's
 *         own message, by its number: neither somebody else's turn nor a later one is ever hit. While no turn is known
 *         to have taken it, nothing is stopped, and the message keeps its place in the queue.
 * Rule 4: what the agent makes of the message does not throw; losing sight of the agent for good does.
 */

import type { Address } from "./address.js";
import { MailslotError, RunTimeout } from "./errors.js";
import { isEvent, type Event, type Item } from "./event.js";
import { insisted } from "./exclusive.js";
import { Following } from "./following.js";
import { Interval, type RunResult } from "./interval.js";
import { arrive, cancel, prompt, type Draft, type Line } from "./operation.js";
import { DeadlinePassed, Patience } from "./patience.js";
import { Subscription } from "./subscription.js";
import type { Receipt } from "./wire.js";

/** How a run is to be carried out. */
export interface Manner {
  readonly deltas: boolean;
  readonly cancelOnAbort: boolean;
  /** Its message is refused while the agent is busy, and then sent again once it is not, for at most so long. */
  readonly alone: { readonly patienceMs: number | undefined } | undefined;
}

/** What a run says beside its events. */
interface Notes {
  receipt: Receipt | undefined;
  result: RunResult | undefined;
}

/** A run that is being read. Leaving it before its end abandons it. */
export class Run<T extends Item = Event> extends Following<T> {
  readonly #notes: Notes;

  /** Made by `session.runStreamed`. Nothing is sent before the first event is asked for. */
  constructor(
    line: (signal: AbortSignal) => Line,
    address: Address,
    message: Draft,
    manner: Manner,
    signal?: AbortSignal,
  ) {
    const notes: Notes = { receipt: undefined, result: undefined };
    super((own) => ownedRun(line(own), address, message, manner, notes) as AsyncGenerator<T, void>, signal);
    this.#notes = notes;
  }

  /** The receipt of the run's message, from the moment it is there. */
  get receipt(): Receipt | undefined {
    return this.#notes.receipt;
  }

  /** The run's result, once its last event was read. */
  get result(): RunResult {
    if (this.#notes.result === undefined) {
      throw new Error("the run has no result yet: read its events to their end first");
    }
    return this.#notes.result;
  }
}

async function* ownedRun(
  line: Line,
  address: Address,
  message: Draft,
  manner: Manner,
  notes: Notes,
): AsyncGenerator<Item, void> {
  try {
    yield* owned(line, address, message, manner, notes);
  } catch (error) {
    if (error instanceof DeadlinePassed) {
      const what = `the run of message ${message.messageId}`;
      throw new RunTimeout(`session ${address.sessionId} was not idle in time for ${what}`, message.messageId);
    }
    throw error;
  }
}

async function* owned(
  line: Line,
  address: Address,
  message: Draft,
  manner: Manner,
  notes: Notes,
): AsyncGenerator<Item, void> {
  const { subscription, receipt } = await entered(line, address, message, manner);
  notes.receipt = receipt;
  const interval = new Interval(address.sessionId, message.messageId);
  let timedOut = false;
  try {
    while (!interval.done) {
      // All of it is taken before it is given: who leaves in the middle may know the message's turn by then.
      const received = await subscription.receive();
      yield* received.filter((item) => !isEvent(item) || interval.feed(item));
    }
    notes.result = interval.result();
  } catch (error) {
    timedOut = error instanceof DeadlinePassed;
    throw error;
  } finally {
    subscription.close();
    const abandoned = !interval.done && (timedOut || line.patience.signal?.aborted === true);
    if (abandoned && manner.cancelOnAbort && interval.turn !== undefined) {
      await stop(line, address, interval.turn);
    }
  }
}

/** A subscription that stands since before the message was sent, and the message's receipt. */
interface Entered {
  readonly subscription: Subscription;
  readonly receipt: Receipt;
}

async function entered(line: Line, address: Address, message: Draft, manner: Manner): Promise<Entered> {
  const enter = async (since: number): Promise<Entered> => {
    const subscription = new Subscription(line.transport, line.patience, address, since, manner.deltas);
    try {
      await subscription.open();
      return { subscription, receipt: await prompt(line, address, message) };
    } catch (error) {
      subscription.close();
      throw error;
    }
  };
  const after = await arrive(line, address);
  return await (manner.alone ? insisted(line, address, manner.alone.patienceMs, after, enter) : enter(after));
}

/** Stop the turn as far as that can be done quickly; a caller who leaves cannot be told more. */
async function stop(line: Line, address: Address, turn: number): Promise<void> {
  const { settings } = line.patience;
  const bounded = new Patience(settings).within(settings.abortTimeoutMs);
  try {
    await cancel({ transport: line.transport, patience: bounded }, address, { turn });
  } catch (error) {
    if (!(error instanceof MailslotError || error instanceof DeadlinePassed)) {
      throw error;
    }
  }
}
