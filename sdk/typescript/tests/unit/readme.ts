/** The examples of the README, as a reader would paste them. */

import { readFileSync } from "node:fs";

const README = new URL("../../README.md", import.meta.url);

export function examples(): string[] {
  return [...readFileSync(README, "utf8").matchAll(/```ts\n(.*?)```/gs)].map((found) => found[1] ?? "");
}
