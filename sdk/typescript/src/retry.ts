/**
 * Whether a request is sent again, after how long, and what it means when it is not.
 *
 * | answer                                              | may it have been done? | send again?              |
 * |-----------------------------------------------------|------------------------|--------------------------|
 * | no connection                                       | no                     | yes                      |
 * | cut, or silent for too long                         | yes                    | if repeating is safe     |
 * | 429, 503 with a problem                             | no                     | yes                      |
 * | 503 `outcome-unknown`                               | yes                    | if repeating is safe     |
 * | 408, 502, 503, 504 of something in between          | yes                    | if repeating is safe     |
 * | any other refusal                                   | no                     | no                       |
 *
 * Rule 1: a prompt is always safe to repeat, because the client makes its message id; a read is, too.
 * Rule 2: the wait doubles, and a random part of it is waited, so that clients that failed together do not come back
 *         together. Where the server says `Retry-After`, it is waited for, up to a limit.
 * Rule 3: a refusal that depends on the request alone settles also what an earlier, lost attempt came to.
 */

import { BadAnswer, CursorExpired, OutcomeUnknown, Refused, TransportLost, type MailslotError } from "./errors.js";
import type { Patience } from "./patience.js";
import { decode, excerpt, type JsonMap } from "./reading.js";
import type { Settings } from "./settings.js";
import type { Fault, Reply, Request, Transport } from "./transport.js";

const PROBLEM = "application/problem+json";

/** Statuses by which something between client and server says that it has no answer. */
const BETWEEN = new Set([408, 502, 503, 504]);

/** Refusals that an earlier attempt with the same request would have met as well. */
const DECIDED_BY_REQUEST = new Set([400, 401, 403, 413, 422]);

/** Doublings of the first wait: far beyond any limit, and no huge number. */
const DOUBLINGS_MAX = 30;

/** What an answer means for the next attempt. */
export interface Verdict {
  readonly done: boolean;
  /** It may have been done. */
  readonly doubt: boolean;
  /** It may go better next time. */
  readonly transient: boolean;
  /** Not sooner than this. */
  readonly afterMs: number;
}

/** What a request does, and whether it may be sent again. */
export interface Effect {
  /** What the request does, in words. */
  readonly names: string;
  /** `safe`: doing it twice is the same as doing it once. `unsafe`: only when it was certainly not done. */
  readonly repeat: "safe" | "unsafe";
  readonly messageId?: string;
}

/** The row of the table that an answer is in. */
export function judge(answer: Reply | Fault): Verdict {
  if (answer.kind === "fault") {
    return { done: false, doubt: answer.sent, transient: true, afterMs: 0 };
  }
  if (answer.status >= 200 && answer.status < 300) {
    return { done: true, doubt: false, transient: false, afterMs: 0 };
  }
  const problem = problemOf(answer);
  const afterMs = retryAfterMs(answer, problem);
  if (problem === undefined) {
    const between = BETWEEN.has(answer.status);
    return { done: false, doubt: between, transient: between || answer.status === 429, afterMs };
  }
  if (problem["code"] === OutcomeUnknown.code) {
    return { done: false, doubt: true, transient: true, afterMs };
  }
  return { done: false, doubt: false, transient: answer.status === 429 || answer.status === 503, afterMs };
}

/** How long to wait after so many failures in a row; `chance` is a random number from 0 up to 1. */
export function backoffMs(settings: Settings, failures: number, chance: number, afterMs = 0): number {
  const doublings = Math.min(Math.max(failures - 1, 0), DOUBLINGS_MAX);
  const longestMs = Math.min(settings.backoffMaxMs, settings.backoffFirstMs * 2 ** doublings);
  return Math.max(longestMs * chance, afterMs);
}

/** The good answer to a request, after as many attempts as are safe and allowed. Without an effect it only reads. */
export async function asked(
  transport: Transport,
  patience: Patience,
  request: Request,
  effect?: Effect,
  timeoutMs: number = patience.settings.requestTimeoutMs,
): Promise<JsonMap> {
  const { settings } = patience;
  let doubt = false;
  for (let attempt = 1; ; attempt++) {
    const answer = await transport.exchange(request, patience.leftMs(timeoutMs), patience);
    const verdict = judge(answer);
    if (verdict.done && answer.kind === "reply") {
      return decode(answer.text, "the answer");
    }
    doubt ||= verdict.doubt;
    const allowed = attempt < settings.attemptsMax && verdict.afterMs <= settings.retryAfterMaxMs;
    const safe = effect?.repeat !== "unsafe" || !verdict.doubt;
    if (!(verdict.transient && allowed && safe)) {
      throw failure(answer, doubt ? effect : undefined);
    }
    await patience.pause(backoffMs(settings, attempt, Math.random(), verdict.afterMs));
  }
}

/** The error that a last answer is; `effect` is what may have been done by it or by an attempt before it. */
export function failure(answer: Reply | Fault, effect?: Effect): MailslotError {
  const certain = answer.kind === "reply" && DECIDED_BY_REQUEST.has(answer.status);
  if (effect !== undefined && !certain) {
    const again = effect.messageId === undefined ? "" : "; repeat it with the same message id";
    const sentence = `${effect.names} may have been done or not: ${why(answer)}${again}`;
    return new OutcomeUnknown(sentence, effect.messageId, { cause: failure(answer) });
  }
  if (answer.kind === "fault") {
    return new TransportLost(answer.why, answer.sent);
  }
  const problem = problemOf(answer);
  if (problem !== undefined) {
    return refusal(answer, problem);
  }
  if (BETWEEN.has(answer.status) || answer.status === 429) {
    return new TransportLost(why(answer), true);
  }
  return new BadAnswer(`${why(answer)}: ${excerpt(answer.text)}`);
}

/** The problem in a refusal; undefined when something else than the server of this protocol refused. */
function problemOf(answer: Reply): JsonMap | undefined {
  if (mediaType(answer.headers.get("content-type")) !== PROBLEM) {
    return undefined;
  }
  const problem = decode(answer.text, "the problem");
  return typeof problem["code"] === "string" ? problem : undefined;
}

/** A content type without its parameters. */
export function mediaType(contentType: string | null): string {
  return (contentType ?? "").split(";", 1)[0]?.trim().toLowerCase() ?? "";
}

function refusal(answer: Reply, problem: JsonMap): MailslotError {
  const code = String(problem["code"]);
  const sentence = String(problem["detail"] || problem["title"] || code);
  if (code === CursorExpired.code) {
    return new CursorExpired(sentence, integer(problem, "oldest"), integer(problem, "newest"));
  }
  const afterMs = retryAfterMs(answer, problem);
  return new Refused(code, sentence, {
    status: answer.status,
    retryable: problem["retryable"] === true,
    ...(afterMs > 0 ? { retryAfterMs: afterMs } : {}),
    problem,
  });
}

function why(answer: Reply | Fault): string {
  if (answer.kind === "fault") {
    return answer.why;
  }
  const problem = problemOf(answer);
  if (problem !== undefined) {
    return String(problem["detail"] || problem["code"]);
  }
  if (answer.status === 0) {
    return "the server answered with a redirection"; // all that a browser tells of one
  }
  const place = answer.headers.get("location");
  return `the server answered ${answer.status}${place === null ? "" : ` and points to ${place}`}`;
}

/** The server's own wish: of the problem, which is exact, or of the header. A date is not understood. */
function retryAfterMs(answer: Reply, problem: JsonMap | undefined): number {
  const wished = problem === undefined ? undefined : integer(problem, "retryAfterMs");
  if (wished !== undefined) {
    return Math.max(0, wished);
  }
  const header = answer.headers.get("retry-after") ?? "";
  return /^[0-9]+$/.test(header) ? Number(header) * 1000 : 0;
}

export function integer(value: JsonMap, name: string): number | undefined {
  const found = value[name];
  return typeof found === "number" && Number.isInteger(found) ? found : undefined;
}
