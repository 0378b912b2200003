/**
 * How patient a client is: every limit with its name, its unit and its default, in one place.
 *
 * Give your own with `new Client({ settings: { requestTimeoutMs: 5_000 } })`. Nothing is read from the environment.
 */
export interface Settings {
  /** How long to wait for each part of an ordinary answer. */
  readonly requestTimeoutMs: number;
  /** After so long a silent event stream counts as cut: three heartbeats of the server. */
  readonly silenceTimeoutMs: number;
  /** How often a request that is safe to repeat is sent at most. */
  readonly attemptsMax: number;
  /** How often in a row an event stream is opened again without getting any further. */
  readonly reconnectsMax: number;
  /** A stream that lived this long was a good one, even if the agent was silent: its end is not held against it. */
  readonly settledMs: number;
  /** Longest first wait before a repetition; each further one is twice as long, and a random part of it is waited. */
  readonly backoffFirstMs: number;
  /** Longest wait before a repetition, unless the server asks for more. */
  readonly backoffMaxMs: number;
  /** Longest wait that a server may ask for; asked for more, the client gives the refusal to its caller. */
  readonly retryAfterMaxMs: number;
  /** Length of one long poll for idle: below what common proxies cut. */
  readonly idlePollMs: number;
  /** How late the server may answer a long poll: its last answer says why the agent was not idle. */
  readonly idleGraceMs: number;
  /** How long cancelling an abandoned run may take. */
  readonly abortTimeoutMs: number;
  /** Bytes of one frame of an event stream: the largest message as JSON, with room. */
  readonly frameBytesMax: number;
  /** Bytes of one ordinary answer. */
  readonly answerBytesMax: number;
}

export const DEFAULTS: Settings = {
  requestTimeoutMs: 30_000,
  silenceTimeoutMs: 45_000,
  attemptsMax: 5,
  reconnectsMax: 10,
  settledMs: 5_000,
  backoffFirstMs: 100,
  backoffMaxMs: 5_000,
  retryAfterMaxMs: 60_000,
  idlePollMs: 25_000,
  idleGraceMs: 1_000,
  abortTimeoutMs: 5_000,
  frameBytesMax: 16 * 1024 * 1024,
  answerBytesMax: 64 * 1024 * 1024,
};
