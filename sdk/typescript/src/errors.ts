/**
 * What can go wrong for a client, by whose fault it is.
 *
 *     MailslotError                 has .code, and .message is the sentence
 *     ├── Refused                   the server said no, and nothing was done; .code is the problem's
 *     ├── OutcomeUnknown            it may have been done or not; .messageId makes repeating safe
 *     ├── CursorExpired             the history after the cursor is not kept any more
 *     ├── RunTimeout                the caller's own patience ended; the agent goes on
 *     ├── TransportLost             the server could not be reached again, whatever was tried
 *     └── BadAnswer                 what answered does not speak this protocol
 *
 * Rule 1: a model error, a token limit, a cancelled or rejected message are no errors of a client: they are facts in
 *         the ledger, and a run reports them as it reports everything else.
 * Rule 2: `TransportLost` and `OutcomeUnknown` come only after every repetition that is safe has been tried.
 * Rule 3: an `AbortSignal` that fires is its owner's act: its own reason is thrown, and none of these.
 */

/** Anything this package throws on purpose. */
export class MailslotError extends Error {
  override readonly name: string = "MailslotError";
  readonly code: string;

  constructor(code: string, sentence: string, options?: ErrorOptions) {
    super(sentence, options);
    this.code = code;
  }
}

/** What is known of a refusal beside its code and its sentence. */
export interface Refusal {
  readonly status?: number;
  readonly retryable?: boolean;
  readonly retryAfterMs?: number;
  readonly problem?: Readonly<Record<string, unknown>>;
}

/** The server refused, and nothing was kept or changed. `code` says why; `retryable` that it may work later. */
export class Refused extends MailslotError {
  override readonly name = "Refused";
  /** HTTP status; undefined when it was refused here, before it was sent. */
  readonly status: number | undefined;
  readonly retryable: boolean;
  /** What the server asked to wait before another try. */
  readonly retryAfterMs: number | undefined;
  /** The whole problem as it came (RFC 9457). */
  readonly problem: Readonly<Record<string, unknown>>;

  constructor(code: string, sentence: string, refusal: Refusal = {}) {
    super(code, sentence);
    this.status = refusal.status;
    this.retryable = refusal.retryable ?? false;
    this.retryAfterMs = refusal.retryAfterMs;
    this.problem = refusal.problem ?? {};
  }
}

/**
 * The request may have been carried out or not. Repeating a prompt with the same message id is always safe. Its `cause`
 * is what the last answer alone would have been.
 */
export class OutcomeUnknown extends MailslotError {
  static readonly code = "outcome-unknown";
  override readonly name = "OutcomeUnknown";
  /** The id to repeat with; undefined when it was not about a message. */
  readonly messageId: string | undefined;

  constructor(sentence: string, messageId?: string, options?: ErrorOptions) {
    super(OutcomeUnknown.code, sentence, options);
    this.messageId = messageId;
  }
}

/** The events after the cursor are not kept, or never were. Nothing was skipped in silence. */
export class CursorExpired extends MailslotError {
  static readonly code = "cursor-expired";
  override readonly name = "CursorExpired";
  /** The seqs that are kept, where the server said so. */
  readonly oldest: number | undefined;
  readonly newest: number | undefined;

  constructor(sentence: string, oldest?: number, newest?: number) {
    super(CursorExpired.code, sentence);
    this.oldest = oldest;
    this.newest = newest;
  }
}

/** The time the caller gave is over. The agent was not cancelled, unless the caller asked for that. */
export class RunTimeout extends MailslotError {
  override readonly name = "RunTimeout";
  /** The message of the run, when one was sent: it may be kept, and its events can be read later. */
  readonly messageId: string | undefined;

  constructor(sentence: string, messageId?: string) {
    super("run-timeout", sentence);
    this.messageId = messageId;
  }
}

/** The connection could not be made, or was cut and could not be resumed. */
export class TransportLost extends MailslotError {
  override readonly name = "TransportLost";
  /** Whether the server was ever reached. In a browser, which hides why a request failed, it may say so falsely. */
  readonly reached: boolean;

  constructor(sentence: string, reached: boolean) {
    super("transport-lost", sentence);
    this.reached = reached;
  }
}

/** Something answered that does not speak this protocol, or speaks a newer one. */
export class BadAnswer extends MailslotError {
  override readonly name = "BadAnswer";

  constructor(sentence: string) {
    super("bad-answer", sentence);
  }
}
