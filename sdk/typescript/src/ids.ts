/**
 * Ids that the client makes itself, so that what it sends can be sent again.
 *
 * A message id is a UUIDv7 (RFC 9562): 48 bits of milliseconds, then random bits. Nothing reads the time out of it.
 */

const BYTES = 16;
const TIME_BYTES = 6;

/** A fresh id. */
export function newId(): string {
  // getRandomValues, unlike randomUUID, is there on pages that came over plain http as well.
  const drawn = crypto.getRandomValues(new Uint8Array(BYTES));
  let milliseconds = Date.now();
  for (let place = TIME_BYTES - 1; place >= 0; place--) {
    drawn[place] = milliseconds % 256;
    milliseconds = Math.floor(milliseconds / 256);
  }
  drawn[6] = 0x70 | ((drawn[6] ?? 0) & 0x0f);
  drawn[8] = 0x80 | ((drawn[8] ?? 0) & 0x3f);
  const hex = Array.from(drawn, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
