/** Everything else that a session can do, against the product. */

import { once } from "node:events";
import { createServer, type AddressInfo } from "node:net";

import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { BadAnswer, Client, CursorExpired, Refused, RunTimeout, TransportLost, type Event } from "../../src/index.js";
import { client, fresh, gate, ledger } from "./rig.js";

beforeEach(gate.close);
afterEach(gate.open);

const FAR_MS = 3_600_000;

async function first(events: AsyncIterable<Event>, count: number): Promise<Event[]> {
  const found: Event[] = [];
  for await (const event of events) {
    if (found.push(event) === count) {
      break;
    }
  }
  return found;
}

describe("messages", () => {
  test("the same message twice is one message, and another body under its id is refused", async () => {
    const session = client().session(fresh());
    const receipt = await session.prompt("hello", { messageId: "m-1" });
    const again = await session.prompt("hello", { messageId: "m-1" });
    expect([receipt.duplicate, again.duplicate, again.cursor]).toEqual([false, true, receipt.cursor]);
    await expect(session.prompt("something else", { messageId: "m-1" })).rejects.toMatchObject({
      code: "conflict",
      status: 422,
    });
  });

  test("a steer joins the turn, and an inject does not wake", async () => {
    const session = client().session(fresh());
    await session.inject("some context");
    expect((await session.status()).status).toBe("idle");
    const run = session.run("wait please");
    await gate.reached();
    await session.steer("to the left", { ifIdle: "reject", expectTurn: 1 });
    await gate.open();
    const { events, finalResponse } = await run;
    expect(finalResponse).toBe("answer to to the left");
    expect(events.filter((event) => event.type === "turn/start")).toHaveLength(1);
    const texts = events.flatMap((event) => (event.type === "user/message" ? event.data.content : []));
    expect(texts.map((block) => block["text"])).toEqual(["some context", "wait please", "to the left"]);
    await expect(session.steer("too late", { ifIdle: "reject" })).rejects.toMatchObject({ code: "idle" });
  });

  test("what waits can be read, replaced, moved and withdrawn", async () => {
    const session = client().session(fresh());
    const notBefore = Date.now() + FAR_MS;
    const report = await session.prompt("the report", { notBefore, metadata: { n: 1.5, deep: [null, "\u2028"] } });
    const mail = await session.prompt("the mail", { notBefore, expiresAt: notBefore + 1_000 });
    const waiting = await session.queue();
    expect(waiting.map((message) => message.messageId)).toEqual([report.messageId, mail.messageId]);
    expect(waiting[0]).toMatchObject({ due: false, notBefore, metadata: { n: 1.5, deep: [null, "\u2028"] } });
    await session.replace(report.messageId, [{ type: "text", text: "the other report" }]);
    expect(await session.withdraw(mail.messageId)).toMatchObject({ state: "cancelled" });
    await expect(session.withdraw(mail.messageId)).rejects.toMatchObject({ code: "already-settled", status: 409 });
    await session.move(report.messageId);
    await session.whenIdle({ after: report.cursor, timeoutMs: 20_000 });
    expect(await session.message(report.messageId)).toMatchObject({ state: "admitted", turn: 1 });
    expect(await session.queue()).toEqual([]);
  });

  test.each([{ content: "" }, { content: "   " }, { content: [] }, { content: [{ type: "hologram" }] }])(
    "what no door takes is refused: $content",
    async ({ content }) => {
      await expect(
        client()
          .session(fresh())
          .prompt(content as string),
      ).rejects.toMatchObject({ code: "bad-input" });
    },
  );

  test.each(["a/b", "ü 🙂", "a?b#c&d=e%2F", "...", "x".repeat(199)])("any id names a session: %s", async (name) => {
    const session = client().session(name + fresh().slice(0, 200 - name.length));
    expect((await session.run("hello")).sessionId).toBe(session.id);
    expect((await session.status()).sessionId).toBe(session.id);
  });
});

describe("the agent", () => {
  test("a cancel stops the open turn, and says what is still queued", async () => {
    const session = client().session(fresh());
    const { cursor } = await session.prompt("wait please");
    await gate.reached();
    const later = await session.prompt("after that");
    const outcome = await session.cancel({ waitMs: 20_000 });
    expect(outcome.stillQueued).toEqual([later.messageId]);
    await session.whenIdle({ after: cursor, timeoutMs: 20_000 });
    expect((await session.cancel()).outcome).toBe("nothing_to_cancel");
    await expect(session.cancel({ turn: 1 })).rejects.toMatchObject({ code: "not-open" });
  });

  test("a hold is released", async () => {
    const session = client().session(fresh());
    await session.prompt("wait please");
    await gate.reached();
    await session.prompt("held");
    await session.cancel({ queue: "hold", waitMs: 20_000 });
    await session.whenIdle({ timeoutMs: 20_000 });
    expect(await session.status()).toMatchObject({ held: 1, status: "idle" });
    await session.release();
    await session.whenIdle({ after: (await session.status()).cursor - 1, timeoutMs: 20_000 });
    await expect(session.release()).rejects.toMatchObject({ code: "not-held" });
  });

  test("the level says why it runs, and waiting for idle says it too when the time is over", async () => {
    const session = client().session(fresh());
    await expect(session.status()).rejects.toMatchObject({ code: "not-found" });
    const { cursor } = await session.prompt("wait please");
    await gate.reached();
    expect(await session.status()).toMatchObject({ status: "running", turn: 1, conservation: 0 });
    await expect(session.whenIdle({ timeoutMs: 200 })).rejects.toThrow(/turn 1/);
    await expect(session.whenIdle({ signal: AbortSignal.timeout(200) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
    await gate.open();
    const idle = await session.whenIdle({ after: cursor, timeoutMs: 20_000 });
    expect((await session.status()).cursor).toBe(idle);
    await expect(session.whenIdle({ after: idle, timeoutMs: 100 })).rejects.toThrow(RunTimeout);
  });

  test("events are read from a cursor, until they are left; a foreign cursor is an error", async () => {
    const session = client().session(fresh());
    await session.run("hello");
    const events = await ledger(session.id);
    expect(await first(session.events(), events.length)).toEqual(events);
    expect(await first(session.events({ after: 4 }), 3)).toEqual(events.slice(4, 7));
    await expect(first(session.events({ after: 1_000_000 }), 1)).rejects.toThrow(CursorExpired);
    await expect(first(client().session(fresh()).events(), 1)).rejects.toMatchObject({ code: "not-found" });
    const waiting = session.events({ after: events.length });
    const next = waiting.next();
    await waiting.return?.();
    expect(await next).toEqual({ done: true, value: undefined });
  });

  test("a goal is set, read, changed and cleared", async () => {
    const session = client().session(fresh());
    await session.inject("x");
    expect(await session.goal.get()).toBeUndefined();
    const made = await session.goal.set("win", { budgets: { rounds: 3 } });
    expect(made).toMatchObject({ phase: "active", objective: "win", budgets: { rounds: 3 } });
    await expect(session.goal.set("win again")).rejects.toMatchObject({ code: "goal-exists" });
    const paused = await session.goal.pause({ revision: made.revision });
    expect(paused).toMatchObject({ phase: "paused", reason: { kind: "user" } });
    await expect(session.goal.resume({ revision: made.revision })).rejects.toMatchObject({ code: "revision" });
    const edited = await session.goal.edit({ objective: "win big", budgets: { rounds: 5 } });
    const resumed = await session.goal.resume({ revision: edited.revision });
    const blocked = await session.goal.block({ code: "stuck", message: "no key", revision: resumed.revision });
    expect(blocked).toMatchObject({ phase: "blocked", reason: { code: "stuck" }, objective: "win big" });
    const done = await session.goal.complete();
    await session.goal.clear({ revision: done.revision });
    expect(await session.goal.get()).toBeUndefined();
  });
});

describe("sessions", () => {
  test("one keeps the agent it was made with", async () => {
    const name = fresh();
    await client().session(name, { agent: "default" }).run("hello");
    await expect(client().session(name, { agent: "poet" }).prompt("hello")).rejects.toMatchObject({
      code: "session-exists",
    });
  });

  test("every session is listed once, however many there are", async () => {
    const names = Array.from({ length: 130 }, fresh);
    await Promise.all(names.map((name) => client().session(name).inject("x")));
    const found: string[] = [];
    for await (const level of client().sessions({ status: "idle" })) {
      found.push(level.sessionId);
    }
    expect(found.filter((name) => names.includes(name)).sort()).toEqual([...names].sort());
  });

  test("one that is closed takes nothing more, and one that is deleted is gone", async () => {
    const session = client().session(fresh());
    await session.run("hello");
    expect((await session.close()).closed).toBe(true);
    await expect(session.prompt("more")).rejects.toMatchObject({ code: "closed" });
    expect((await session.delete({ waitMs: 5_000 })).erased).toBe(true);
    await expect(session.status()).rejects.toThrow(Refused);
  });

  test("nothing is dead, and what is not there cannot be redriven", async () => {
    const letters = [];
    for await (const letter of client().dead()) {
      letters.push(letter);
    }
    expect(letters).toEqual([]);
    await expect(client().redrive("no such letter")).rejects.toThrow(Refused);
  });
});

describe("what is no mailslot server", () => {
  test("nobody listens", async () => {
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as AddressInfo;
    await new Promise((resolve) => server.close(resolve));
    const nobody = new Client({ baseUrl: `http://127.0.0.1:${port}`, settings: { attemptsMax: 2, backoffFirstMs: 1 } });
    const lost = await nobody
      .session("s")
      .prompt("hello")
      .catch((error: unknown) => error);
    expect(lost).toBeInstanceOf(TransportLost);
    expect(lost).toMatchObject({ reached: false });
  });

  test("something else answers", async () => {
    const rig = new Client({ baseUrl: process.env["MAILSLOT_RIG_URL"] ?? "" });
    await expect(rig.session("s").status()).rejects.toThrow(BadAnswer);
  });
});
