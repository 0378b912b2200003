/**
 * HTTP over `fetch`: one request, one answer; or one request and a stream that is read piece by piece.
 *
 * Rule 1: nothing is decided here: a step is carried out, once. `retry` and `subscription` say what comes next.
 * Rule 2: an error of the connection becomes a `Fault`; it is never thrown. An answer without end is, and so is the
 *         reason of a caller's signal.
 * Rule 3: no redirect is followed: a prompt that became a GET on its way would be lost.
 */

import { BadAnswer } from "./errors.js";
import { Watch, type Patience } from "./patience.js";
import type { Settings } from "./settings.js";

/** The part of `fetch` that is used. */
export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

/** A request to the server; the path is quoted already. */
export interface Request {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  readonly path: string;
  readonly query?: Readonly<Record<string, string>>;
  readonly body?: string;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A whole answer. */
export interface Reply {
  readonly kind: "reply";
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

/** There is no answer. `sent`: the server may have got the request all the same. */
export interface Fault {
  readonly kind: "fault";
  readonly why: string;
  readonly sent: boolean;
}

/** What is wrong with a request that never left this machine (Node). Browsers do not tell. */
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT"]);

const TOKEN = /^[!-~]+$/;

export class Transport {
  readonly settings: Settings;
  readonly #url: string;
  readonly #fetch: Fetch;
  readonly #headers: Readonly<Record<string, string>>;

  constructor(url: string, token: string | undefined, fetch: Fetch | undefined, settings: Settings) {
    this.#url = checkedUrl(url);
    // Called through a function of our own: a browser's fetch refuses to be a method of anything but its window.
    this.#fetch = fetch ?? ((target, init) => globalThis.fetch(target, init));
    this.settings = settings;
    this.#headers = { accept: "application/json", ...(token === undefined ? {} : bearer(token)) };
  }

  /** Send a request and read its whole answer. */
  async exchange(request: Request, timeoutMs: number, patience: Patience): Promise<Reply | Fault> {
    const watch = new Watch(patience.signal);
    try {
      watch.arm(timeoutMs);
      const response = await this.#send(request, watch);
      return await this.#whole(response, watch, timeoutMs);
    } catch (error) {
      return this.#fault(error, patience);
    } finally {
      watch.close();
    }
  }

  /** Send a request and leave its answer open, to be read; a `Reply` when it was refused. */
  async open(request: Request, patience: Patience): Promise<Stream | Reply | Fault> {
    const watch = new Watch(patience.signal);
    let opened = false;
    try {
      const silenceMs = patience.leftMs(this.settings.silenceTimeoutMs);
      watch.arm(silenceMs);
      const response = await this.#send(request, watch);
      if (response.status !== 200) {
        return await this.#whole(response, watch, silenceMs);
      }
      watch.disarm();
      opened = true;
      return new Stream(response, watch, (error) => this.#fault(error, patience));
    } catch (error) {
      return this.#fault(error, patience);
    } finally {
      if (!opened) {
        watch.close();
      }
    }
  }

  async #send(request: Request, watch: Watch): Promise<Response> {
    const query = new URLSearchParams(request.query).toString();
    return await this.#fetch(this.#url + request.path + (query === "" ? "" : `?${query}`), {
      method: request.method,
      headers: {
        ...this.#headers,
        ...(request.body === undefined ? {} : { "content-type": "application/json" }),
        ...request.headers,
      },
      ...(request.body === undefined ? {} : { body: request.body }),
      cache: "no-store",
      redirect: "manual",
      signal: watch.signal,
    });
  }

  async #whole(response: Response, watch: Watch, timeoutMs: number): Promise<Reply> {
    const decoder = new TextDecoder();
    let text = "";
    let bytes = 0;
    const reader = response.body?.getReader();
    for (;;) {
      watch.arm(timeoutMs);
      const piece = await reader?.read();
      if (piece?.value === undefined) {
        break;
      }
      bytes += piece.value.length;
      if (bytes > this.settings.answerBytesMax) {
        throw new BadAnswer(`the answer of ${this.#url} has more than ${this.settings.answerBytesMax} bytes`);
      }
      text += decoder.decode(piece.value, { stream: true });
    }
    return { kind: "reply", status: response.status, headers: response.headers, text: text + decoder.decode() };
  }

  #fault(error: unknown, patience: Patience): Fault {
    patience.signal?.throwIfAborted();
    if (error instanceof BadAnswer) {
      throw error;
    }
    const sent = !isUnsent(error);
    const what = sent ? `the connection to ${this.#url} was cut` : `cannot reach ${this.#url}`;
    return { kind: "fault", why: `${what}: ${reasonOf(error)}`, sent };
  }
}

/** An answer that is open. */
export class Stream {
  readonly kind = "stream";
  readonly contentType: string;
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  readonly #watch: Watch;
  readonly #fault: (error: unknown) => Fault;

  constructor(response: Response, watch: Watch, fault: (error: unknown) => Fault) {
    this.contentType = response.headers.get("content-type") ?? "";
    this.#reader = response.body?.getReader();
    this.#watch = watch;
    this.#fault = fault;
  }

  /** The next bytes; a `Fault` when there are no more, or none came for so long. */
  async read(silenceMs: number): Promise<Uint8Array | Fault> {
    try {
      this.#watch.arm(silenceMs);
      const piece = await this.#reader?.read();
      this.#watch.disarm();
      return piece?.value ?? { kind: "fault", why: "the server ended the stream", sent: true };
    } catch (error) {
      return this.#fault(error);
    }
  }

  close(): void {
    this.#watch.close();
    // An aborted stream refuses to be cancelled; that it is over is all that matters.
    this.#reader?.cancel().catch(() => undefined);
  }
}

/** The address without a slash at its end; TypeError with a sentence when it is none of a server. */
export function checkedUrl(url: string): string {
  let parts: URL;
  try {
    parts = new URL(url);
  } catch {
    throw new TypeError(`the url must look like http://127.0.0.1:8080, got ${JSON.stringify(url)}`);
  }
  if (parts.protocol !== "http:" && parts.protocol !== "https:") {
    throw new TypeError(`the url must look like http://127.0.0.1:8080, got ${JSON.stringify(url)}`);
  }
  if (parts.username !== "" || parts.password !== "") {
    throw new TypeError("the url must not hold a user or a password; give a token instead");
  }
  if (parts.search !== "" || parts.hash !== "") {
    throw new TypeError(`the url must end with its path, got ${JSON.stringify(url)}`);
  }
  return url.trim().replace(/[/?#]+$/, "");
}

/** The header that shows a token; TypeError when no header could hold it. The token is not in the sentence. */
function bearer(token: string): { readonly authorization: string } {
  if (!TOKEN.test(token)) {
    throw new TypeError("the token must be printable ASCII without spaces");
  }
  return { authorization: `Bearer ${token}` };
}

function isUnsent(error: unknown): boolean {
  return error instanceof Error && (UNSENT.has(codeOf(error)) || isUnsent(error.cause));
}

function codeOf(error: Error): string {
  return "code" in error ? String(error.code) : "";
}

function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) {
    return String(error);
  }
  const inner = error.cause instanceof Error ? error.cause : error;
  return inner.message || codeOf(inner) || inner.name;
}
