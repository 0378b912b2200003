/**
 * A run: an interval of activity that the caller owns.
 *
 *     arrive ──> subscribe ──> submit ──> collect … through the next idle ──> result
 *                                 │ refused `busy`, for one that is to be alone
 *       ^─────── wait for idle <──┘
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
import { MailslotError, Refused, RunTimeout } from "./errors.js";
import { isEvent, type Event, type Item } from "./event.js";
import { Following } from "./following.js";
import { Interval, type RunResult } from "./interval.js";
import { arrive, cancel, prompt, rest, type Draft, type Line } from "./operation.js";
import { DeadlinePassed, Patience } from "./patience.js";
import { backoffMs } from "./retry.js";
import { Subscription } from "./subscription.js";
import type { Receipt } from "./wire.js";

/** How a run is to be carried out. */
export interface Manner {
  readonly deltas: boolean;
  readonly cancelOnAbort: boolean;
  /** Its message is refused while the agent is busy, and then sent again once it is idle. */
  readonly alone: boolean;
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
  const opening = new Opening(line, address);
  try {
    for (;;) {
      try {
        return yield* attempt(line, address, message, manner, notes);
      } catch (error) {
        if (!manner.alone || !isBusy(error)) {
          throw error;
        }
      }
      await opening.come();
    }
  } catch (error) {
    if (error instanceof DeadlinePassed) {
      const { messageId } = message;
      throw new RunTimeout(
        `session ${address.sessionId} was not idle in time for the run of message ${messageId}`,
        messageId,
      );
    }
    throw error;
  }
}

async function* attempt(
  line: Line,
  address: Address,
  message: Draft,
  manner: Manner,
  notes: Notes,
): AsyncGenerator<Item, void> {
  const after = await arrive(line, address);
  const subscription = new Subscription(line.transport, line.patience, address, after, manner.deltas);
  const interval = new Interval(address.sessionId, message.messageId);
  let timedOut = false;
  try {
    await subscription.open();
    notes.receipt = await prompt(line, address, message);
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

/** Submit a message that is to be alone: refused `busy`, it waits for idle and tries again. */
export async function promptAlone(line: Line, address: Address, message: Draft): Promise<Receipt> {
  const opening = new Opening(line, address);
  for (;;) {
    try {
      return await prompt(line, address, message);
    } catch (error) {
      if (!isBusy(error)) {
        throw error;
      }
    }
    await opening.come();
  }
}

/** The moments at which a message that was refused `busy` may be tried again. */
class Opening {
  readonly #line: Line;
  readonly #address: Address;
  #idle: number | undefined;
  #tries = 0;

  constructor(line: Line, address: Address) {
    this.#line = line;
    this.#address = address;
  }

  /** Wait for idle and then a little, so that those who wait do not come all at once, and ever longer while nothing
   * changes: an agent that is idle is still busy when its queue is on hold. */
  async come(): Promise<void> {
    const { patience } = this.#line;
    const idle = await rest(this.#line, this.#address, undefined).catch((error: unknown) => {
      throw error instanceof RunTimeout ? new DeadlinePassed() : error;
    });
    this.#tries = idle === this.#idle ? this.#tries + 1 : 1;
    this.#idle = idle;
    await patience.pause(backoffMs(patience.settings, this.#tries, Math.random()));
  }
}

function isBusy(error: unknown): boolean {
  return error instanceof Refused && error.code === "busy";
}
