/**
 * Sending only while nobody else is at work: what `session.exclusive()` is built on.
 *
 *     submit, ifBusy: reject ──> kept: nothing else is under way
 *         ^        │ refused `busy`
 *         │        v
 *         └── wait until the agent is idle      not longer than the caller's patience; then the refusal is
 *                                               the caller's
 *
 * Rule 1: the server decides, in the act that would queue the message. Waiting for idle only says when to ask again, so
 *         two messages sent like this never share an interval, whoever sends them.
 * Rule 2: nobody is first in line: of those who ask at the same idle one gets in, and the others wait for the next one.
 * Rule 3: an idle agent may be busy as well, when messages are held; it is asked again after a while.
 * Rule 4: it is the same message each time. `busy` after an answer that was lost leaves open whether it was kept, and
 *         so does giving up then; asking again settles it.
 * Rule 5: a wait that is over because the whole call is, is no refusal.
 */

import type { Address } from "./address.js";
import { OutcomeUnknown, Refused, RunTimeout } from "./errors.js";
import { level, rest, type Line } from "./operation.js";
import { DeadlinePassed } from "./patience.js";
import { backoffMs } from "./retry.js";

/** What `submit` comes to once the agent is free. It is told after which seq its message can only be kept. */
export async function insisted<T>(
  line: Line,
  address: Address,
  patienceMs: number | undefined,
  since: number,
  submit: (since: number) => Promise<T>,
): Promise<T> {
  const patient: Line = { ...line, patience: line.patience.within(patienceMs) };
  let tries = 0;
  let doubt = false;
  for (;;) {
    let refusal: unknown;
    try {
      return await submit(since);
    } catch (error) {
      if (!isBusy(error)) {
        throw error;
      }
      refusal = error;
    }
    doubt ||= refusal instanceof OutcomeUnknown;
    try {
      const freed = await becameFree(patient, address, tries + 1);
      tries = freed.tries;
      since = doubt ? since : freed.newest;
    } catch (error) {
      if (!(error instanceof DeadlinePassed || error instanceof RunTimeout)) {
        throw error;
      }
      line.patience.leftMs(0);
      throw refusal;
    }
  }
}

/** Wait until it is worth asking again: the newest seq before, and how often in a row the agent only seemed free. */
async function becameFree(line: Line, address: Address, tries: number): Promise<{ newest: number; tries: number }> {
  const { status, cursor } = await level(line, address);
  if (status === "running") {
    await rest(line, address, cursor);
    return { newest: cursor, tries: 0 };
  }
  const { patience } = line;
  await patience.pause(backoffMs(patience.settings, tries, Math.random()));
  return { newest: cursor, tries };
}

function isBusy(error: unknown): boolean {
  const last = error instanceof OutcomeUnknown ? error.cause : error;
  return last instanceof Refused && last.code === "busy";
}
