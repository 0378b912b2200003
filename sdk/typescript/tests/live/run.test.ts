/** Runs against the product. */

import { afterEach, beforeEach, describe, expect, test } from "vitest";

import { isEvent, Refused, RunTimeout, type Event } from "../../src/index.js";
import { client, cuts, cutClient, faults, fresh, gate, ledger } from "./rig.js";

beforeEach(gate.close);
afterEach(gate.open);

function types(events: readonly Event[]): string[] {
  return events.map((event) => event.type);
}

describe("run", () => {
  test("returns what was said last before the next idle, and exactly its part of the ledger", async () => {
    const session = client().session(fresh());
    for (const day of ["monday", "tuesday"]) {
      const result = await session.run(day);
      expect(result.finalResponse).toBe(`answer to ${day}`);
      expect(result.message).toMatchObject({ state: "admitted", step: 1 });
      expect(faults(result, await ledger(session.id))).toEqual([]);
    }
  });

  test("reports what the model makes of it and never throws it", async () => {
    const session = client().session(fresh());
    expect(await session.run("fail")).toMatchObject({ finalResponse: "", message: { state: "admitted" } });
    expect((await session.run("say nothing")).finalResponse).toBe("");
    expect((await session.run("be long")).finalResponse).toBe("answer to be long");
  });

  test("never returns yesterday: 200 at once on one session, one prompt active and one queued (T1)", async () => {
    const session = client().session(fresh());
    await session.prompt("wait for it");
    await gate.reached();
    await session.prompt("queued before");
    const runs = Array.from({ length: 200 }, (_, n) => session.run(`run ${n}`));
    while ((await session.status()).pending < 201);
    await gate.open();
    const results = await Promise.all(runs);
    const events = await ledger(session.id);
    expect(results.flatMap((result) => faults(result, events))).toEqual([]);
    expect(new Set(results.map((result) => result.messageId)).size).toBe(200);
    const admitted = events.map((event) => (event.type === "user/message" ? event.data.messageId : ""));
    for (const { messageId } of results) {
      expect(admitted.filter((id) => id === messageId)).toHaveLength(1);
    }
  });

  test("owns other people's messages in its interval", async () => {
    const session = client().session(fresh());
    const run = session.run("wait please");
    await gate.reached();
    await session.prompt("me too");
    await gate.open();
    const result = await run;
    expect(result.finalResponse).toBe("answer to me too");
    expect(types(result.events).filter((type) => type === "turn/start")).toHaveLength(2);
  });

  test("leaves the agent at work when its signal fires or its time is over", async () => {
    const session = client().session(fresh());
    const controller = new AbortController();
    const run = session.run("wait please", { signal: controller.signal });
    await gate.reached();
    controller.abort(new Error("enough"));
    await expect(run).rejects.toThrow("enough");
    await expect(session.run("and then", { timeoutMs: 300 })).rejects.toThrow(RunTimeout);
    expect((await session.status()).status).toBe("running");
    await gate.open();
    await session.whenIdle({ timeoutMs: 20_000 });
    expect(types(await ledger(session.id))).not.toContain("cancel/requested");
  });

  test("stops the turn that took its message when it is to cancel on abort", async () => {
    const session = client().session(fresh());
    const controller = new AbortController();
    const run = session.runStreamed("wait please", { signal: controller.signal, cancelOnAbort: true });
    await expect(
      (async () => {
        for await (const event of run) {
          if (event.type === "user/message") {
            controller.abort(new Error("enough"));
          }
        }
      })(),
    ).rejects.toThrow("enough");
    await session.whenIdle({ timeoutMs: 20_000 });
    const asked = (await ledger(session.id)).find((event) => event.type === "cancel/requested");
    expect(asked?.data).toMatchObject({ turn: 1, queue: "keep" });
  });

  test("never stops somebody else's turn", async () => {
    const session = client().session(fresh());
    await session.prompt("wait for theirs");
    await gate.reached();
    await expect(session.run("mine", { timeoutMs: 300, cancelOnAbort: true })).rejects.toThrow(RunTimeout);
    await gate.open();
    await session.whenIdle({ timeoutMs: 20_000 });
    expect(types(await ledger(session.id))).not.toContain("cancel/requested");
  });

  test("leaving the loop of a streamed run that cancels on abort stops its turn", async () => {
    const session = client().session(fresh());
    for await (const event of session.runStreamed("wait please", { cancelOnAbort: true })) {
      if (event.type === "user/message") {
        break;
      }
    }
    await session.whenIdle({ timeoutMs: 20_000 });
    expect(types(await ledger(session.id))).toContain("cancel/requested");
  });
});

describe("runStreamed", () => {
  test("gives events, then its result", async () => {
    const run = client().session(fresh()).runStreamed("hello");
    expect(run.receipt).toBeUndefined();
    const events: Event[] = [];
    for await (const event of run) {
      expect(() => run.result).toThrow("no result yet");
      events.push(event);
    }
    expect(run.result.events).toEqual(events);
    expect(run.receipt).toMatchObject({ cursor: run.result.from, messageId: run.result.messageId, duplicate: false });
  });

  test("gives what the model says while it says it", async () => {
    const run = client().session(fresh()).runStreamed("in pieces", { deltas: true });
    let said = "";
    const events: Event[] = [];
    for await (const item of run) {
      if (isEvent(item)) {
        events.push(item);
      } else {
        said += item.data.text;
      }
    }
    expect(said).toBe("answer to in pieces");
    expect(run.result.events).toEqual(events);
  });
});

describe("exclusive", () => {
  test("two runs that are to be alone never overlap, and others wait for their turn", async () => {
    const session = client().session(fresh());
    await session.prompt("wait for it");
    await gate.reached();
    const runs = Array.from({ length: 6 }, (_, n) =>
      client()
        .session(session.id)
        .exclusive((alone) => alone.run(`alone ${n}`)),
    );
    await gate.open();
    const results = (await Promise.all(runs)).sort((a, b) => a.from - b.from);
    results.slice(1).forEach((result, n) => expect(result.from).toBeGreaterThan(results[n]?.to ?? Number.NaN));
    for (const result of results) {
      expect(types(result.events).filter((type) => type === "inbox/queued")).toHaveLength(1);
    }
    expect(results.flatMap((result) => result.finalResponse).sort()).toEqual(
      Array.from({ length: 6 }, (_, n) => `answer to alone ${n}`),
    );
  });

  test("gives up when its time is over, and then nothing of it is queued", async () => {
    const session = client().session(fresh());
    await session.prompt("wait for it");
    await gate.reached();
    await expect(session.exclusive((alone) => alone.run("alone", { timeoutMs: 300 }))).rejects.toThrow(RunTimeout);
    const refused = session.exclusive((alone) => alone.run("alone"), { timeoutMs: 300 });
    await expect(refused).rejects.toMatchObject({ name: "Refused", code: "busy" });
    const left = session.exclusive((alone) => alone.prompt("alone", { signal: AbortSignal.timeout(300) }));
    await expect(left).rejects.toMatchObject({ name: "TimeoutError" });
    expect(types(await ledger(session.id)).filter((type) => type === "inbox/queued")).toHaveLength(1);
    const kept = session.exclusive((alone) => alone.prompt("when you have time"));
    await gate.open();
    expect((await kept).duplicate).toBe(false);
  });

  test("an agent that is idle behind a hold is still busy", async () => {
    const session = client().session(fresh());
    await session.prompt("later", { notBefore: Date.now() + 3_600_000 });
    await session.prompt("wait for it");
    await gate.reached();
    await session.prompt("held");
    await session.cancel({ queue: "hold", waitMs: 20_000 });
    await session.whenIdle({ timeoutMs: 20_000 });
    const waiting = session.exclusive((alone) => alone.run("alone"));
    const refused = session.exclusive((alone) => alone.run("no"), { timeoutMs: 200 });
    await expect(refused).rejects.toMatchObject({ code: "busy" });
    await gate.open();
    await session.release();
    expect((await waiting).finalResponse).toBe("answer to alone");
  });
});

describe("over connections that are cut", () => {
  test("runs are exact, and send each message once", async () => {
    const session = cutClient().session(fresh());
    const before = await cuts();
    let sent = 0;
    while (sent < 10 || (await cuts()) < before + 5) {
      const result = await session.run(`message ${sent}`);
      sent += 1;
      expect(result.finalResponse).toBe(`answer to message ${sent - 1}`);
      expect(faults(result, await ledger(session.id))).toEqual([]);
    }
    expect(types(await ledger(session.id)).filter((type) => type === "user/message")).toHaveLength(sent);
  });

  test("an event stream has no gap and no repetition while hundreds of events flow", async () => {
    const session = client().session(fresh());
    await session.inject("the first");
    const reader = cutClient().session(session.id);
    const before = await cuts();
    let enough = false;
    const seen: Event[] = [];
    const reading = (async () => {
      for await (const event of reader.events()) {
        seen.push(event);
        if (
          event.type === "inbox/queued" &&
          event.data.content.some((b) => b.type === "text" && b.text === "the last")
        ) {
          return;
        }
      }
    })();
    for (let n = 0; !enough; n++) {
      await session.run(`message ${n} ${"ü\u2028🙂".repeat(n % 50)}`);
      enough = (await session.status()).cursor > 250 && (await cuts()) >= before + 5;
    }
    await session.inject("the last");
    await reading;
    const events = await ledger(session.id);
    expect(seen.map((event) => event.seq)).toEqual(Array.from({ length: events.length }, (_, n) => n + 1));
    expect(seen).toEqual(events);
  });

  test("what is refused is refused there, too", async () => {
    const session = cutClient().session(fresh());
    await session.inject("x", { messageId: "m-1" });
    await expect(session.inject("y", { messageId: "m-1" })).rejects.toThrow(Refused);
  });
});
