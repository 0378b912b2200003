/** What is sent, what is sent again, and what a client makes of what comes back. */

import { describe, expect, test } from "vitest";

import {
  BadAnswer,
  Client,
  CursorExpired,
  MailslotError,
  OutcomeUnknown,
  Refused,
  TransportLost,
} from "../../src/index.js";
import { newId } from "../../src/ids.js";
import { backoffMs } from "../../src/retry.js";
import { DEFAULTS } from "../../src/settings.js";
import { cut, json, page, problem, receipt, served, silence, type Answer } from "./server.js";

async function failed(asking: Promise<unknown>): Promise<MailslotError> {
  const error: unknown = await asking.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  expect(error).toBeInstanceOf(MailslotError);
  return error as MailslotError;
}

const level = json({
  sessionId: "s",
  status: "idle",
  reasons: [],
  cursor: 7,
  pending: 0,
  held: 0,
  usage: {},
  conservation: 0,
});

describe("a prompt", () => {
  test.each<[string, Answer]>([
    ["cut", cut],
    ["refused with an unknown outcome", problem(503, "outcome-unknown", { messageId: "m" })],
    ["refused for now", problem(429, "rate-limited", { retryable: true, retryAfterMs: 1 })],
    ["answered by something in between", page(502)],
  ])("that was %s is sent again as it was", async (_, trouble) => {
    const { client, asked } = await served([trouble, trouble, receipt]);
    const { messageId } = await client.session("s").prompt("hello");
    expect(asked.map(({ method, path }) => `${method} ${path}`)).toEqual(Array(3).fill("POST /v1/sessions/s/prompt"));
    expect(new Set(asked.map(({ body }) => body)).size).toBe(1);
    expect(JSON.parse(asked[0]?.body ?? "")).toEqual({ messageId, content: "hello", delivery: "queue" });
  });

  test("whose outcome stays unknown says by which id to repeat it", async () => {
    const { client, asked } = await served([cut]);
    const error = await failed(client.session("s").prompt("hello", { messageId: "order-4711" }));
    expect(error).toBeInstanceOf(OutcomeUnknown);
    expect(error).toMatchObject({ code: "outcome-unknown", messageId: "order-4711" });
    expect(asked).toHaveLength(3);
  });

  test("that was never kept is not in doubt", async () => {
    const { client } = await served([problem(503, "store-refused", { retryable: true })]);
    expect(await failed(client.session("s").prompt("hello"))).toMatchObject({ code: "store-refused", status: 503 });
  });

  test("that was lost and then refused is in doubt, unless the request alone decided it", async () => {
    const { client } = await served([cut, problem(409, "closed")]);
    expect(await failed(client.session("s").prompt("hello"))).toBeInstanceOf(OutcomeUnknown);
    const { client: other } = await served([cut, problem(422, "conflict")]);
    expect(await failed(other.session("s").prompt("hello"))).toMatchObject({ name: "Refused", code: "conflict" });
  });

  test("says everything that it was told to say", async () => {
    const { client, asked } = await served([receipt]);
    const said = { notBefore: 5, expiresAt: 9, ifBusy: "reject", ifIdle: "reject", expectTurn: 3 } as const;
    await client
      .session("s")
      .steer("x", { ...said, messageId: "m", source: { kind: "system" }, metadata: { a: null } });
    expect(JSON.parse(asked[0]?.body ?? "")).toEqual({
      ...said,
      messageId: "m",
      content: "x",
      delivery: "steer",
      source: { kind: "system" },
      metadata: { a: null },
    });
  });

  test("to a session with an agent makes the session first, once", async () => {
    const { client, asked } = await served([json({ sessionId: "s", cursor: 1 }, 201), receipt]);
    const session = client.session("s", { agent: "poet" });
    await session.prompt("one");
    await session.prompt("two");
    expect(asked.map(({ path }) => path)).toEqual(["/v1/sessions", "/v1/sessions/s/prompt", "/v1/sessions/s/prompt"]);
    expect(JSON.parse(asked[0]?.body ?? "")).toEqual({ sessionId: "s", agent: "poet" });
  });
});

describe("what is not safe to repeat", () => {
  test.each<[string, (client: Client) => Promise<unknown>]>([
    ["a cancel that names no turn", (client) => client.session("s").cancel()],
    ["a cancel that clears the queue", (client) => client.session("s").cancel({ turn: 1, queue: "clear" })],
    ["a move", (client) => client.session("s").move("m")],
    ["a release", (client) => client.session("s").release()],
    ["a change of a goal", (client) => client.session("s").goal.pause()],
  ])("is not repeated when its answer was lost: %s", async (_, act) => {
    const { client, asked } = await served([cut]);
    expect(await failed(act(client))).toBeInstanceOf(OutcomeUnknown);
    expect(asked).toHaveLength(1);
  });

  test("a cancel that names its turn is repeated", async () => {
    const { client, asked } = await served([cut, json({ outcome: "requested", stillQueued: [], turn: 4 }, 202)]);
    expect(await client.session("s").cancel({ turn: 4 })).toMatchObject({ outcome: "requested" });
    expect(asked.map(({ body }) => JSON.parse(body))).toEqual(Array(2).fill({ queue: "keep", turn: 4 }));
  });
});

describe("an answer", () => {
  test.each<[string, Answer, RegExp]>([
    ["a page", page(200), /the answer is not JSON/],
    ["another refusal", page(404), /answered 404/],
    ["a redirection", page(302, { location: "http://elsewhere/" }), /points to http:\/\/elsewhere/],
    ["a list", json([]), /not a JSON object/],
    ["another object", json({ status: "idle" }), /sessionId: expected string, got nothing/],
  ])("that is no mailslot server's is a BadAnswer: %s", async (_, answer, sentence) => {
    const { client, asked } = await served([answer]);
    const error = await failed(client.session("s").status());
    expect(error).toBeInstanceOf(BadAnswer);
    expect(error.message).toMatch(sentence);
    expect(asked).toHaveLength(1);
  });

  test("without end is not read to its end", async () => {
    const { client } = await served([json({ text: "x".repeat(2_000) })], { settings: { answerBytesMax: 1_000 } });
    expect((await failed(client.session("s").status())).message).toMatch(/more than 1000 bytes/);
  });

  test("that does not come counts as cut", async () => {
    const { client, asked } = await served([silence, level], { settings: { requestTimeoutMs: 100, attemptsMax: 100 } });
    expect((await client.session("s").status()).cursor).toBe(7);
    expect(asked.length).toBeGreaterThan(1);
  });

  test("that asks for more patience than there is goes to the caller", async () => {
    const { client, asked } = await served([problem(429, "queue-full", { retryable: true, retryAfterMs: 3_600_000 })]);
    const error = await failed(client.session("s").status());
    expect(error).toMatchObject({ code: "queue-full", retryable: true, retryAfterMs: 3_600_000, status: 429 });
    expect(error).toBeInstanceOf(Refused);
    expect(asked).toHaveLength(1);
  });

  test("of something in between, that never gets better, is a lost transport", async () => {
    const { client } = await served([page(504)]);
    expect(await failed(client.session("s").status())).toBeInstanceOf(TransportLost);
  });

  test("that the history is gone says what is there", async () => {
    const { client } = await served([problem(410, "cursor-expired", { oldest: 5, newest: 9 })]);
    const error = await failed(client.session("s").status());
    expect(error).toBeInstanceOf(CursorExpired);
    expect(error).toMatchObject({ oldest: 5, newest: 9 });
  });

  test("keeps what is not known here", async () => {
    const { client } = await served([json({ outcome: "requested", stillQueued: [], novelty: { deep: [1] } })]);
    expect(await client.session("s").cancel()).toMatchObject({ novelty: { deep: [1] } });
  });
});

describe("a signal", () => {
  test("that fired before sends nothing, and gives its reason", async () => {
    const { client, asked } = await served([level]);
    const reason = new Error("enough");
    await expect(client.session("s").status({ signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    await expect(client.session("s").run("x", { signal: AbortSignal.abort(reason) })).rejects.toBe(reason);
    expect(asked).toEqual([]);
  });

  test("that fires ends a request that is under way, and a wait between two", async () => {
    const { client } = await served([silence]);
    await expect(client.session("s").status({ signal: AbortSignal.timeout(20) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
    const { client: other } = await served([problem(429, "rate-limited", { retryAfterMs: 50_000 })]);
    await expect(other.session("s").status({ signal: AbortSignal.timeout(20) })).rejects.toMatchObject({
      name: "TimeoutError",
    });
  });

  test("may be used for many calls, and is not listened to after them", async () => {
    const { client } = await served([level]);
    const { signal } = new AbortController();
    let listeners = 0;
    const { addEventListener, removeEventListener } = signal;
    signal.addEventListener = (...given: Parameters<typeof addEventListener>) => {
      listeners += 1;
      addEventListener.apply(signal, given);
    };
    signal.removeEventListener = (...given: Parameters<typeof removeEventListener>) => {
      listeners -= 1;
      removeEventListener.apply(signal, given);
    };
    for (let n = 0; n < 3; n++) {
      await client.session("s").status({ signal });
    }
    expect(listeners).toBe(0);
  });
});

describe("what is sent", () => {
  test("shows the token, and nothing shows a token that no header can hold", async () => {
    const { client, asked } = await served([level], { token: "s3cret" });
    await client.session("s").status();
    expect(asked[0]?.headers["authorization"]).toBe("Bearer s3cret");
    expect(() => new Client({ token: "bad\ntoken" })).toThrow(/^the token must be printable ASCII without spaces$/);
  });

  test("goes through the caller's own fetch, below the path of the server's address", async () => {
    const urls: string[] = [];
    const { url, asked } = await served([level]);
    const client = new Client({
      baseUrl: `${url}/behind/`,
      fetch: (target, init) => {
        urls.push(target);
        return fetch(target, init);
      },
    });
    await client.session("ü?/#").status();
    expect(urls).toEqual([`${url}/behind/v1/sessions/%C3%BC%3F%2F%23`]);
    expect(asked).toHaveLength(1);
  });

  test.each(["no url", "ftp://host", "http://user:word@host", "http://host/?x=1", "http://host/#x"])(
    "is not sent to what is no address of a server: %s",
    (baseUrl) => expect(() => new Client({ baseUrl })).toThrow(/^the url/),
  );

  test("is refused here when no server could take it as it is meant", async () => {
    const { client, asked } = await served([level]);
    const circular: Record<string, unknown> = {};
    circular["self"] = circular;
    for (const id of ["", ".", "..", "\ud800"]) {
      expect(await failed(client.session(id).status())).toMatchObject({ code: "bad-input", status: undefined });
    }
    for (const metadata of [{ n: NaN }, { n: [Infinity] }, { n: 1n }, circular]) {
      expect(await failed(client.session("s").prompt("x", { metadata }))).toMatchObject({ code: "bad-input" });
    }
    await expect(client.session("s").whenIdle({ timeoutMs: NaN })).rejects.toThrow(RangeError);
    expect(asked).toEqual([]);
  });
});

test("a list is read page by page", async () => {
  const row = { sessionId: "s", status: "idle", reasons: [], cursor: 1, pending: 0, held: 0, conservation: 0 };
  const { client, asked } = await served([
    json({ sessions: [row, row], next: "two" }),
    json({ sessions: [row], next: null }),
  ]);
  const found = [];
  for await (const level of client.sessions({ status: "idle" })) {
    found.push(level);
  }
  expect(found).toHaveLength(3);
  expect(asked.map(({ query }) => [query.get("status"), query.get("after")])).toEqual([
    ["idle", null],
    ["idle", "two"],
  ]);
});

test("waits before repetitions double, up to a limit, and chance takes its part", () => {
  const longest = [1, 2, 3, 4, 100].map((failures) => backoffMs(DEFAULTS, failures, 1));
  expect(longest).toEqual([100, 200, 400, 800, 5_000]);
  expect(backoffMs(DEFAULTS, 3, 0.25)).toBe(100);
  expect(backoffMs(DEFAULTS, 1, 0.5, 700)).toBe(700);
});

test("ids are fresh, and of UUID version 7", () => {
  const ids = Array.from({ length: 1_000 }, newId);
  expect(new Set(ids).size).toBe(1_000);
  for (const id of ids) {
    expect(id).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  }
  expect(Math.abs(parseInt((ids[0] ?? "").replace("-", "").slice(0, 12), 16) - Date.now())).toBeLessThan(60_000);
});
