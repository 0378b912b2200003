/** A server that answers what a test says: for what the product never does, and networks and strangers do. */

import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

import { onTestFinished } from "vitest";

import { Client, type ClientOptions, type Settings } from "../../src/index.js";

/** A request as it came. */
export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

/** What answers one request; the last one answers all that follow. */
export type Answer = (response: ServerResponse, asked: Asked) => void | Promise<void>;

export interface Served {
  readonly client: Client;
  readonly url: string;
  readonly asked: Asked[];
  /** How many answers are open. */
  readonly open: () => number;
}

const QUICK: Partial<Settings> = { backoffFirstMs: 1, backoffMaxMs: 5, attemptsMax: 3, reconnectsMax: 3 };

/** A server with these answers, and a client of it, for the length of a test. */
export async function served(answers: Answer[], options: ClientOptions = {}): Promise<Served> {
  const asked: Asked[] = [];
  const left = [...answers];
  let opened = 0;
  const server = createServer((request, response) => {
    opened += 1;
    response.once("close", () => (opened -= 1));
    void (async () => {
      const pieces: Buffer[] = [];
      for await (const piece of request) {
        pieces.push(piece as Buffer);
      }
      const { pathname, searchParams } = new URL(request.url ?? "", "http://server");
      const one = {
        method: request.method ?? "",
        path: pathname,
        query: searchParams,
        headers: request.headers,
        body: Buffer.concat(pieces).toString(),
      };
      asked.push(one);
      await (left.length > 1 ? left.shift() : left[0])?.(response, one);
    })();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const client = new Client({ baseUrl: url, ...options, settings: { ...QUICK, ...options.settings } });
  return { client, url, asked, open: () => opened };
}

/** The connection is reset. */
export const cut: Answer = (response) => void response.socket?.resetAndDestroy();

/** Nothing ever comes. */
export const silence: Answer = () => undefined;

export function json(value: unknown, status = 200, headers: Record<string, string> = {}): Answer {
  return (response) =>
    void response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(value));
}

export function problem(status: number, code: string, more: Record<string, unknown> = {}): Answer {
  return json({ code, title: code, detail: `it is ${code}`, status, ...more }, status, {
    "content-type": "application/problem+json",
  });
}

export function page(status: number, headers: Record<string, string> = {}): Answer {
  return (response) =>
    void response.writeHead(status, { "content-type": "text/html", ...headers }).end("<html>no</html>");
}

/** A receipt for whatever was sent. */
export const receipt: Answer = (response, { body }) =>
  json({ messageId: JSON.parse(body).messageId, cursor: 2, duplicate: false, durability: "fsync" }, 202)(
    response,
    {} as Asked,
  );

/** A stream that sends this and stays open, or is cut. */
export function stream(text: string, { end = false, type = "text/event-stream" } = {}): Answer {
  return (response) => {
    response.writeHead(200, { "content-type": type });
    response.write(text, () => end && response.socket?.resetAndDestroy());
  };
}

export function envelope(seq: number, more: Record<string, unknown> = {}): Record<string, unknown> {
  return { v: 1, seq, sessionId: "s", type: "agent/status", time: 1, epoch: 1, data: { status: "running" }, ...more };
}

/** An event's frame. */
export function frame(seq: number, more: Record<string, unknown> = {}): string {
  return `id: ${seq}\nevent: session.event\ndata: ${JSON.stringify(envelope(seq, more))}\n\n`;
}
