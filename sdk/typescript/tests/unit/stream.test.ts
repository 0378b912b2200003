/** Event streams: frames out of bytes, and events in order out of streams that end, lie and fall silent. */

import { describe, expect, test, vi } from "vitest";

import { BadAnswer, CursorExpired, TransportLost, type Item } from "../../src/index.js";
import { Parser, type Frame } from "../../src/sse.js";
import { cut, envelope, frame, json, page, problem, served, stream, type Answer } from "./server.js";

const MANY_BYTES = 1_000_000;

function frames(bytes: Uint8Array, at: readonly number[] = []): Frame[] {
  const parser = new Parser(MANY_BYTES);
  const cuts = [0, ...at, bytes.length];
  return cuts.slice(1).flatMap((end, n) => parser.feed(bytes.subarray(cuts[n], end)));
}

describe("frames", () => {
  const text =
    '\ufeff: hello\nid: 1\nevent: session.event\ndata: {"text":"ü 你 🙂 \u2028 \u2029 \u0085"}\n\n' +
    "data:no space\ndata:  two spaces\ndata\nretry: 5\nunknown: x\n\n" +
    ": only a comment\n\nid: 2\n\nevent: late\ndata: x\n\ndata: never finished";
  const expected: Frame[] = [
    { event: "session.event", data: '{"text":"ü 你 🙂 \u2028 \u2029 \u0085"}', id: "1" },
    { event: "message", data: "no space\n two spaces\n", id: undefined },
    { event: "late", data: "x", id: undefined },
  ];

  test.each([
    ["LF", "\n"],
    ["CR", "\r"],
    ["CRLF", "\r\n"],
  ])("are the same wherever the bytes are split: lines that end with %s", (_, end) => {
    const bytes = new TextEncoder().encode(text.replaceAll("\n", end));
    expect(frames(bytes)).toEqual(expected);
    for (let at = 1; at < bytes.length; at++) {
      expect(frames(bytes, [at])).toEqual(expected);
    }
    expect(frames(bytes, Array.from(bytes.keys()).slice(1))).toEqual(expected);
  });

  test("may have so many bytes, and not one more, in one line or in many", () => {
    const feed = (text: string): Frame[] => new Parser(100).feed(new TextEncoder().encode(text));
    expect(feed(`data: ${"x".repeat(94)}\n\n`)).toHaveLength(1);
    expect(feed(`data: ${"x".repeat(94)}\n\n`.repeat(20))).toHaveLength(20);
    expect(() => feed(`data: ${"x".repeat(95)}`)).toThrow(BadAnswer);
    expect(() => feed("data: xxxx\n".repeat(11))).toThrow(/more than 100 bytes/);
  });

  test("are UTF-8", () => {
    expect(() => frames(new Uint8Array([0x64, 0x3a, 0xff, 0x0a]))).toThrow(/not UTF-8/);
  });
});

/** The first events of session s, and what ended reading them. */
async function read(
  answers: Answer[],
  count: number,
  options: Parameters<typeof served>[1] & { deltas?: boolean } = {},
) {
  const { client, asked, open } = await served(answers, options);
  const items: Item[] = [];
  let error: unknown;
  try {
    for await (const item of client.session("s").events({ after: 0, deltas: options.deltas ?? false })) {
      if (items.push(item) === count) {
        break;
      }
    }
  } catch (thrown) {
    error = thrown;
  }
  return {
    seqs: items.map((item) => item["seq"]),
    items,
    error,
    open,
    after: asked.map(({ query }) => query.get("after")),
  };
}

describe("events", () => {
  test("go on after a cut, behind the last one that came", async () => {
    const answers = [
      stream(frame(1) + frame(2) + frame(3).slice(0, 40), { end: true }),
      cut,
      stream(frame(3) + frame(4)),
    ];
    const { seqs, after } = await read(answers, 4);
    expect(seqs).toEqual([1, 2, 3, 4]);
    expect(after).toEqual(["0", "2", "2"]);
  });

  test("that come again are dropped, and after one that is missing the stream is read again", async () => {
    const answers = [
      stream(frame(1) + frame(1) + frame(2) + frame(1) + frame(4) + frame(5)),
      stream(frame(2) + frame(3)),
    ];
    const { seqs, after } = await read(answers, 3);
    expect(seqs).toEqual([1, 2, 3]);
    expect(after).toEqual(["0", "2"]);
  });

  test("are no levels, comments or other frames", async () => {
    const level = `event: session.status\ndata: {"sessionId":"s","status":"idle","cursor":9}\n\n`;
    const status = frame(2).replace("session.event", "session.status");
    const { seqs } = await read([stream(`${level}: still here\n\nevent: other\ndata: x\n\n${frame(1)}${status}`)], 2);
    expect(seqs).toEqual([1, 2]);
  });

  test("of a type that is not known here are passed on with all that is in them", async () => {
    const { items } = await read([stream(frame(1, { type: "novelty/made", data: { deep: [1, null] }, extra: 1 }))], 1);
    expect(items).toEqual([envelope(1, { type: "novelty/made", data: { deep: [1, null] }, extra: 1 })]);
  });

  test("are read again when the server has fallen silent", async () => {
    const next: Answer = (response, asked) => stream(frame(Number(asked.query.get("after")) + 1))(response, asked);
    const settings = { silenceTimeoutMs: 100, reconnectsMax: 100 };
    const { seqs, after } = await read([next], 3, { settings });
    expect(seqs).toEqual([1, 2, 3]);
    expect([...new Set(after)]).toEqual(["0", "1", "2"]);
  });

  test("of a server that only sends heartbeats are waited for", async () => {
    const slow: Answer = async (response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      for (let n = 0; n < 30; n++) {
        response.write(": still here\n\n");
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      response.write(frame(1));
    };
    const { seqs, after } = await read([slow], 1, { settings: { silenceTimeoutMs: 1_000 } });
    expect(seqs).toEqual([1]);
    expect(after).toEqual(["0"]);
  });

  test("that are not kept any more are an error, after all that came before", async () => {
    const gap = `event: session.gap\ndata: {"oldest":7,"newest":9}\n\n`;
    const { seqs, error } = await read([stream(frame(1) + gap + frame(7))], 9);
    expect(seqs).toEqual([1]);
    expect(error).toBeInstanceOf(CursorExpired);
    expect(error).toMatchObject({ oldest: 7, newest: 9 });
  });

  test.each<[string, Answer, RegExp]>([
    ["of another session", stream(frame(1, { sessionId: "t" })), /asked for session s, got an event of session t/],
    ["of a newer version", stream(frame(1, { v: 2 })), /version 2 is newer than 1/],
    ["that are none", stream("id: 1\nevent: session.event\ndata: {]\n\n"), /an event is not JSON/],
    ["without a seq", stream(frame(1, { seq: "1" })), /seq: expected number/],
    ["in a page", page(200), /expected text\/event-stream, the server answered text\/html/],
    ["in a refusal", page(404), /answered 404/],
  ])("%s are a BadAnswer", async (_, answer, sentence) => {
    const { seqs, error } = await read([answer], 1);
    expect(seqs).toEqual([]);
    expect(error).toBeInstanceOf(BadAnswer);
    expect((error as Error).message).toMatch(sentence);
  });

  test("that cannot be had are given up after so many failures in a row, and not before", async () => {
    const hopeless = await read([cut], 1);
    expect(hopeless.error).toBeInstanceOf(TransportLost);
    expect(hopeless.after).toHaveLength(4);
    const slow = [1, 2, 3, 4, 5, 6].map((seq) => stream(frame(seq), { end: true }));
    expect((await read(slow, 6)).seqs).toEqual([1, 2, 3, 4, 5, 6]);
  });

  test("are asked for again when the server is busy, and not when it refuses", async () => {
    const answers = [problem(429, "rate-limited", { retryAfterMs: 1 }), page(503), stream(frame(1))];
    expect((await read(answers, 1)).seqs).toEqual([1]);
    expect((await read([problem(404, "not-found")], 1)).error).toMatchObject({ code: "not-found" });
  });

  test("come with what is being said, if that is asked for", async () => {
    const notice = { v: 1, sessionId: "s", type: "assistant/delta", data: { turn: 1, step: 1, text: "he" } };
    const text = `event: session.delta\ndata: ${JSON.stringify(notice)}\n\n${frame(1)}`;
    expect((await read([stream(text)], 2, { deltas: true })).items).toEqual([notice, envelope(1)]);
    expect((await read([stream(text)], 1)).items).toEqual([envelope(1)]);
  });

  test("can be left while the next one is waited for", async () => {
    const { client, open } = await served([stream(frame(1))]);
    const events = client.session("s").events();
    expect(await events.next()).toMatchObject({ done: false });
    const next = events.next();
    await events.return?.();
    expect(await next).toEqual({ done: true, value: undefined });
    await vi.waitFor(() => expect(open()).toBe(0), { timeout: 10_000 });
  });

  test("that are left leave no stream open", async () => {
    const { open } = await read([stream(frame(1))], 1);
    await vi.waitFor(() => expect(open()).toBe(0), { timeout: 10_000 });
  });
});

describe("a run", () => {
  const own: Answer = async (response, asked) => {
    const level = { sessionId: "s", status: "idle", reasons: [], cursor: 3, pending: 0, held: 0, conservation: 0 };
    await json(level)(response, asked);
  };

  test("subscribes at the newest event before it sends, and needs no receipt to begin", async () => {
    const order: string[] = [];
    let announce: (messageId: string) => void = () => undefined;
    const sent = new Promise<string>((resolve) => (announce = resolve));
    const answer: Answer = async (response, asked) => {
      order.push(`${asked.method} ${asked.path}`);
      if (asked.path.endsWith("/prompt")) {
        const { messageId } = JSON.parse(asked.body) as { messageId: string };
        announce(messageId);
        await json({ messageId, cursor: 5, duplicate: false, durability: "fsync" }, 202)(response, asked);
      } else if (asked.path.endsWith("/events")) {
        response.writeHead(200, { "content-type": "text/event-stream" });
        const late = frame(4, { type: "agent/status", data: { status: "idle" } });
        response.write(late);
        const data = { messageId: await sent, lane: "next-turn", wake: true, content: [], source: { kind: "user" } };
        const said = { turn: 1, step: 1, model: "m", content: [{ type: "text", text: "hi" }] };
        response.write(frame(5, { type: "inbox/queued", data }) + frame(6, { type: "assistant/message", data: said }));
        response.write(frame(7, { data: { status: "idle" } }) + frame(8));
      } else {
        await own(response, asked);
      }
    };
    const { client, open } = await served([answer]);
    const result = await client.session("s").run("hello");
    expect(order).toEqual(["GET /v1/sessions/s", "GET /v1/sessions/s/events", "POST /v1/sessions/s/prompt"]);
    expect(result).toMatchObject({ finalResponse: "hi", from: 5, to: 7, message: { state: "queued" } });
    expect(result.events.map((event) => event.seq)).toEqual([5, 6, 7]);
    await vi.waitFor(() => expect(open()).toBe(0), { timeout: 10_000 });
  });

  test("that is only made asks for nothing, and has no result", async () => {
    const { client, asked } = await served([own]);
    const run = client.session("s").runStreamed("hello");
    expect(() => run.result).toThrow(/no result yet/);
    await run.return();
    expect(await run.next()).toEqual({ done: true, value: undefined });
    expect(asked).toEqual([]);
  });

  test("that is to be alone, and whose fate was in doubt, is found where it was kept", async () => {
    let prompts = 0;
    let messageId = "";
    const busy = problem(409, "busy");
    const { client, asked } = await served([
      async (response, one) => {
        if (one.path.endsWith("/prompt")) {
          prompts += 1;
          messageId = (JSON.parse(one.body) as { messageId: string }).messageId;
          const kept = json({ messageId, cursor: 4, duplicate: true, durability: "fsync" }, 202);
          // The first answer is lost on its way. When it is asked again, its run is over and others are at work.
          await (prompts === 1 ? cut : prompts === 2 ? busy : kept)(response, one);
        } else if (one.path.endsWith("/events")) {
          const data = { messageId, lane: "next-turn", wake: true, content: [], source: { kind: "user" } };
          const events = [frame(4, { type: "inbox/queued", data }), frame(5, { data: { status: "idle" } }), frame(6)];
          const after = Number(one.query.get("after"));
          await stream(prompts < 2 ? ": nothing yet\n\n" : events.slice(after - 3).join(""))(response, one);
        } else {
          const cursor = prompts === 0 ? 3 : 6;
          const level = { sessionId: "s", status: "idle", reasons: [], cursor, pending: 0, held: 0, conservation: 0 };
          await json(level)(response, one);
        }
      },
    ]);
    const result = await client.session("s").exclusive((alone) => alone.run("hello"));
    expect(result).toMatchObject({ messageId, from: 4, to: 5 });
    const sent = asked.filter(({ path }) => path.endsWith("/prompt")).map(({ body }) => body);
    expect(sent).toHaveLength(3);
    expect(new Set(sent).size).toBe(1);
    expect(JSON.parse(sent[0] ?? "")).toMatchObject({ ifBusy: "reject", content: "hello" });
  });
});
