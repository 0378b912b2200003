/**
 * Server-sent events, bytes in and frames out, without I/O.
 *
 *     id: 12\n
 *     event: session.event\n
 *     data: {"v": 1, …}\n
 *     \n
 *
 * Rule 1: lines end at LF, CR or CRLF, as bytes, and nowhere else. U+2028, U+2029 and U+0085 inside a line are text.
 * Rule 2: bytes become text a whole line at a time, so a character that is split between two reads stays whole.
 * Rule 3: a frame that is not finished when the bytes end is dropped: its event is read again from the ledger.
 * Rule 4: comments and fields without a meaning here are skipped. A frame without data is none.
 * Rule 5: a frame has at most `frameBytesMax` bytes, counted while they come.
 */

import { BadAnswer } from "./errors.js";

const LF = 0x0a;
const CR = 0x0d;
const COLON = 0x3a;
const BYTE_ORDER_MARK = "\ufeff";

/** One dispatched frame. `id` is undefined when the frame has none of its own: ids are not carried over. */
export interface Frame {
  readonly event: string;
  readonly data: string;
  readonly id: string | undefined;
}

/** Feed it bytes as they come; it gives the frames that are complete. */
export class Parser {
  readonly #frameBytesMax: number;
  readonly #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  #pieces: Uint8Array[] = [];
  #piecesBytes = 0;
  #afterCr = false;
  #atStart = true;
  #frameBytes = 0;
  #event = "";
  #data: string[] = [];
  #id: string | undefined;

  constructor(frameBytesMax: number) {
    this.#frameBytesMax = frameBytesMax;
  }

  /** The frames that these bytes complete. */
  feed(chunk: Uint8Array): Frame[] {
    const frames: Frame[] = [];
    let start = 0;
    if (this.#afterCr && chunk.length > 0) {
      this.#afterCr = false;
      start = chunk[0] === LF ? 1 : 0;
    }
    let lf = chunk.indexOf(LF, start);
    let cr = chunk.indexOf(CR, start);
    while (lf !== -1 || cr !== -1) {
      const end = lf === -1 || (cr !== -1 && cr < lf) ? cr : lf;
      this.#keep(chunk.subarray(start, end));
      const frame = this.#line();
      if (frame !== undefined) {
        frames.push(frame);
      }
      start = end + 1;
      if (end === cr) {
        this.#afterCr = start === chunk.length;
        start += chunk[start] === LF ? 1 : 0;
      }
      lf = lf !== -1 && lf < start ? chunk.indexOf(LF, start) : lf;
      cr = cr !== -1 && cr < start ? chunk.indexOf(CR, start) : cr;
    }
    this.#keep(chunk.subarray(start));
    return frames;
  }

  /** Only the new bytes are looked at: a large frame in small reads must not cost the square of its size. */
  #keep(piece: Uint8Array): void {
    if (piece.length > 0) {
      this.#pieces.push(piece);
      this.#piecesBytes += piece.length;
    }
    if (this.#frameBytes + this.#piecesBytes > this.#frameBytesMax) {
      throw new BadAnswer(`a frame of the event stream has more than ${this.#frameBytesMax} bytes`);
    }
  }

  #line(): Frame | undefined {
    const line = this.#whole();
    if (line.length === 0) {
      return this.#dispatch();
    }
    if (line[0] !== COLON) {
      this.#frameBytes += line.length;
      this.#field(line);
    }
    this.#atStart = false;
    return undefined;
  }

  #whole(): Uint8Array {
    const first = this.#pieces[0];
    let line = first ?? new Uint8Array();
    if (this.#pieces.length > 1) {
      line = new Uint8Array(this.#piecesBytes);
      let at = 0;
      for (const piece of this.#pieces) {
        line.set(piece, at);
        at += piece.length;
      }
    }
    this.#pieces = [];
    this.#piecesBytes = 0;
    return line;
  }

  #field(line: Uint8Array): void {
    let text: string;
    try {
      text = this.#decoder.decode(line);
    } catch {
      throw new BadAnswer("a line of the event stream is not UTF-8");
    }
    if (this.#atStart && text.startsWith(BYTE_ORDER_MARK)) {
      text = text.slice(BYTE_ORDER_MARK.length);
    }
    const colon = text.indexOf(":");
    const name = colon === -1 ? text : text.slice(0, colon);
    const rest = colon === -1 ? "" : text.slice(colon + 1);
    const value = rest.startsWith(" ") ? rest.slice(1) : rest;
    if (name === "event") {
      this.#event = value;
    } else if (name === "data") {
      this.#data.push(value);
    } else if (name === "id") {
      this.#id = value;
    }
  }

  #dispatch(): Frame | undefined {
    const frame =
      this.#data.length === 0
        ? undefined
        : { event: this.#event || "message", data: this.#data.join("\n"), id: this.#id };
    this.#atStart = false;
    this.#event = "";
    this.#data = [];
    this.#id = undefined;
    this.#frameBytes = 0;
    return frame;
  }
}
