/**
 * The product that `tests/integration/test_typescript.py` has started, and what can be done to it from here.
 *
 *     MAILSLOT_URL      its doors
 *     MAILSLOT_CUT_URL  the same, over a proxy that resets every connection a few times a second
 *     MAILSLOT_RIG_URL  what steers both: the model's gate, and the count of cuts
 *
 * The model does what the text that it gets says: wait at the gate, fail, come in pieces; and answers
 * `answer to <text>`.
 */

import { Client, type Event, type RunResult, type Settings } from "../../src/index.js";

/** Patient enough for a busy machine, and quick to try again. */
const QUICK: Partial<Settings> = { backoffFirstMs: 5, backoffMaxMs: 50 };

/** Whom no number of cuts discourages. */
const STUBBORN: Partial<Settings> = { ...QUICK, attemptsMax: 200, reconnectsMax: 200 };

let sessions = 0;

export function client(): Client {
  return new Client({ baseUrl: place("MAILSLOT_URL"), settings: QUICK });
}

/** A client whose connections are cut. */
export function cutClient(): Client {
  return new Client({ baseUrl: place("MAILSLOT_CUT_URL"), settings: STUBBORN });
}

/** The name of a session that nobody else uses. */
export function fresh(): string {
  sessions += 1;
  return `ts-${process.pid}-${sessions}`;
}

export const gate = {
  /** Return once the model waits at its gate. */
  reached: async (): Promise<void> => void (await steer("reached")),
  open: async (): Promise<void> => void (await steer("open")),
  close: async (): Promise<void> => void (await steer("close")),
};

/** How many connections were cut until now. */
export async function cuts(): Promise<number> {
  return Number(await steer("cuts"));
}

/** The whole ledger of a session, as pages: seen by other means than those under test. */
export async function ledger(sessionId: string): Promise<Event[]> {
  const found: Event[] = [];
  for (let after: number | null = 0; after !== null;) {
    const url = `${place("MAILSLOT_URL")}/v1/sessions/${encodeURIComponent(sessionId)}/events?after=${after}`;
    const answer = await fetch(url, { headers: { accept: "application/json" } });
    const page = (await answer.json()) as { events: Event[]; next: number | null };
    found.push(...page.events);
    after = page.next;
  }
  return found;
}

/** What is wrong with a result, held to U2: exactly the part of the ledger from its receipt through the next idle. */
export function faults(result: RunResult, events: readonly Event[]): string[] {
  const queued = events.find((event) => event.type === "inbox/queued" && event.data.messageId === result.messageId);
  const from = queued?.seq ?? Number.NaN;
  const idle = events.find((e) => e.seq > from && e.type === "agent/status" && e.data.status === "idle");
  const expected = events.filter((event) => event.seq >= from && event.seq <= (idle?.seq ?? Number.NaN));
  const same = JSON.stringify(expected) === JSON.stringify(result.events);
  return [
    ...(result.from === from && result.to === idle?.seq ? [] : [`${result.from} to ${result.to}: expected ${from}`]),
    ...(same && expected.length > 0 ? [] : [`other events than the ledger: ${result.events.map((e) => e.seq)}`]),
  ];
}

async function steer(what: string): Promise<string> {
  const answer = await fetch(`${place("MAILSLOT_RIG_URL")}/${what}`, { method: "POST" });
  if (!answer.ok) {
    throw new Error(`${what}: ${answer.status} ${await answer.text()}`);
  }
  return await answer.text();
}

function place(name: string): string {
  const url = process.env[name];
  if (url === undefined) {
    throw new Error(`${name} is not set: run these tests by pytest tests/integration/test_typescript.py`);
  }
  return url;
}
