/** The interval of a run, held to the histories that every SDK is held to. */

import { readdirSync, readFileSync } from "node:fs";

import { describe, expect, test } from "vitest";

import type { Event } from "../../src/event.js";
import { Interval, type RunResult } from "../../src/interval.js";

interface Vector {
  readonly name: string;
  readonly sessionId: string;
  readonly messageId: string;
  readonly delivered: readonly (Event | null)[];
  readonly result: Omit<RunResult, "events" | "sessionId" | "messageId"> & {
    readonly events: readonly number[];
    readonly finishReason?: string | null;
  };
}

interface Trace {
  readonly title: string;
  readonly history: readonly Pick<Event, "seq" | "type" | "data">[];
  readonly runs: readonly (Pick<RunResult, "messageId" | "from" | "to" | "finalResponse"> & {
    finishReason: unknown;
  })[];
}

const VECTORS = new URL("../../../../contracts/vectors/", import.meta.url);

function load<T>(folder: URL): T[] {
  const names = readdirSync(folder).filter((name) => name.endsWith(".json"));
  return names.sort().map((name) => JSON.parse(readFileSync(new URL(name, folder), "utf8")) as T);
}

const hostile = load<Vector>(new URL("intervals/", VECTORS));
const golden = load<Trace>(VECTORS);

function fed(sessionId: string, messageId: string, events: readonly (Event | null)[]): Interval {
  const interval = new Interval(sessionId, messageId);
  events.forEach((event) => event !== null && interval.feed(event));
  return interval;
}

test("there are histories", () => {
  expect(hostile.length).toBeGreaterThan(0);
  expect(golden.length).toBeGreaterThan(0);
});

describe("a history in a hostile order", () => {
  test.each(hostile)("$name", ({ sessionId, messageId, delivered, result }) => {
    const interval = fed(sessionId, messageId, delivered);
    expect(interval.done).toBe(true);
    const { finishReason: _, events, ...reported } = result;
    const { events: own, ...told } = interval.result();
    expect(told).toEqual({ sessionId, messageId, ...reported });
    expect(own.map((event) => event.seq)).toEqual(events);
    expect(own).toEqual(events.map((seq) => delivered.find((e) => e?.seq === seq && e.sessionId === sessionId)));
  });

  test.each(hostile)("$name: it is not over before its last event", ({ sessionId, messageId, delivered, result }) => {
    const end = delivered.findIndex((event) => event?.seq === result.to && event.sessionId === sessionId);
    const interval = fed(sessionId, messageId, delivered.slice(0, end));
    expect(interval.done).toBe(false);
    expect(() => interval.result()).toThrow(`the run of message ${messageId} is not over`);
  });
});

describe("a golden trace", () => {
  const runs = golden.flatMap(({ title, history, runs }) => runs.map((run) => ({ title, history, run })));

  test.each(runs)("$title: the run of $run.messageId", ({ history, run }) => {
    const events = history.map((event) => ({ v: 1, sessionId: "s", time: 0, epoch: 0, ...event }) as Event);
    const { finishReason: _, ...expected } = run;
    const result = fed("s", run.messageId, events).result();
    expect(result).toMatchObject(expected);
    expect(result.events).toEqual(events.filter((event) => event.seq >= run.from && event.seq <= run.to));
  });
});

test("what is reported does not change when more is fed", () => {
  const { sessionId, messageId, delivered } = hostile[0] as Vector;
  const interval = fed(sessionId, messageId, delivered);
  const before = JSON.stringify(interval.result());
  const last = interval.result().events.at(-1) as Event;
  expect(interval.feed({ ...last, seq: last.seq + 1 })).toBe(false);
  expect(JSON.stringify(interval.result())).toBe(before);
});
