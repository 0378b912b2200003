/**
 * How JSON that came over the wire becomes typed values; what is not as the protocol says is a `BadAnswer`.
 *
 * Rule 1: a value is passed on whole: fields that are not known here are kept.
 * Rule 2: what a caller or this package relies on is checked; the types of `wire` say the rest.
 * Rule 3: what would be silently changed on its way out (`NaN`) is refused before it is sent.
 */

import { BadAnswer, Refused } from "./errors.js";

/** A JSON object. */
export type JsonMap = Readonly<Record<string, unknown>>;

type Kind = "string" | "number" | "boolean" | "object" | "array";

/** The fields of T that must be there, and their kinds. */
export type Shape<T> = { readonly [Name in keyof T]?: Kind };

/** How much of an answer that cannot be read is shown in the sentence about it. */
const EXCERPT_CHARACTERS_MAX = 120;

/** JSON to send. */
export function encode(value: unknown): string {
  try {
    return JSON.stringify(value, (name, inner: unknown) => {
      if (typeof inner === "number" && !Number.isFinite(inner)) {
        throw new RangeError(`${name} is ${inner}`);
      }
      return inner;
    });
  } catch (error) {
    throw new Refused("bad-input", `the value is not JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** One JSON object. */
export function decode(text: string, what: string): JsonMap {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new BadAnswer(`${what} is not JSON: ${excerpt(text)}`);
  }
  if (!isMap(value)) {
    throw new BadAnswer(`${what} is not a JSON object: ${excerpt(text)}`);
  }
  return value;
}

/** The value as a T: every field of the shape is there and of its kind. */
export function read<T>(value: unknown, shape: Shape<T>, what: string): T {
  if (!isMap(value)) {
    throw new BadAnswer(`${what}: expected an object, got ${shown(value)}`);
  }
  for (const [name, kind] of Object.entries<Kind | undefined>(shape)) {
    if (kindOf(value[name]) !== kind) {
      throw new BadAnswer(`${what}: ${name}: expected ${kind}, got ${shown(value[name])}`);
    }
  }
  return value as T;
}

/** A list of Ts. */
export function readAll<T>(value: unknown, shape: Shape<T>, what: string): T[] {
  if (!Array.isArray(value)) {
    throw new BadAnswer(`${what}: expected a list, got ${shown(value)}`);
  }
  return value.map((entry) => read(entry, shape, what));
}

/** A text that may be absent or null. */
export function optionalText(value: JsonMap, name: string): string | undefined {
  const found = value[name] ?? undefined;
  if (found !== undefined && typeof found !== "string") {
    throw new BadAnswer(`${name}: expected string, got ${shown(found)}`);
  }
  return found;
}

export function isMap(value: unknown): value is JsonMap {
  return kindOf(value) === "object";
}

/** The beginning of an answer, safe to show. */
export function excerpt(text: string): string {
  const characters = text.slice(0, EXCERPT_CHARACTERS_MAX);
  return JSON.stringify(characters.length < text.length ? `${characters}…` : characters);
}

function shown(value: unknown): string {
  return value === undefined ? "nothing" : excerpt(JSON.stringify(value) ?? typeof value);
}

function kindOf(value: unknown): string {
  return value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
}
