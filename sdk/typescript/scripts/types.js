/**
 * Writes `src/wire.ts`: the shapes on the wire as TypeScript, from the bundle in `contracts/schemas`.
 *
 *     npm run types                 write it anew
 *     npm run types -- --check      exit 1 when it is stale
 *
 * Rule 1: titles of fields are dropped: each would become an alias of `string`. So are descriptions beside a
 *         reference: each would become a copy of what is referred to.
 * Rule 2: the result of a run is left out: it is made here and not read off the wire, and has a shape of its own.
 */

import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { compile } from "json-schema-to-typescript";

const BUNDLE = new URL("../../../contracts/schemas/bundle.json", import.meta.url);
const WRITTEN = new URL("../src/wire.ts", import.meta.url);

const LEFT_OUT = new Set(["RunResult"]);
const LINE_CHARACTERS_MAX = 120;
const BANNER = `/**
 * The shapes on the wire. Generated from contracts/schemas by \`npm run types\`; do not edit.
 */`;

/**
 * The text that `src/wire.ts` is to have.
 * @returns {Promise<string>}
 */
export async function rendered() {
  const bundle = JSON.parse(await readFile(BUNDLE, "utf8"));
  const names = Object.keys(bundle.$defs).filter((name) => !LEFT_OUT.has(name));
  const whole = {
    title: "Wire",
    description: "One of each.",
    type: /** @type {const} */ ("object"),
    additionalProperties: false,
    $defs: Object.fromEntries(names.map((name) => [name, { ...untitled(bundle.$defs[name]), title: name }])),
    properties: Object.fromEntries(names.map((name) => [name, { $ref: `#/$defs/${name}` }])),
  };
  return await compile(whole, "Wire", {
    bannerComment: BANNER,
    ignoreMinAndMaxItems: true,
    style: { printWidth: LINE_CHARACTERS_MAX },
  });
}

/**
 * The schema without titles, and references without anything beside them. A field called `title` stays.
 * @param {any} schema
 * @returns {any}
 */
function untitled(schema) {
  if (Array.isArray(schema)) {
    return schema.map(untitled);
  }
  if (typeof schema !== "object" || schema === null) {
    return schema;
  }
  if ("$ref" in schema) {
    return { $ref: schema.$ref };
  }
  const kept = Object.entries(schema).filter(([name, value]) => name !== "title" || typeof value !== "string");
  return Object.fromEntries(kept.map(([name, value]) => [name, untitled(value)]));
}

/** @returns {Promise<string>} */
export async function written() {
  return await readFile(WRITTEN, "utf8");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const text = await rendered();
  if (!process.argv.includes("--check")) {
    await writeFile(WRITTEN, text);
  } else if ((await written()) !== text) {
    console.error("src/wire.ts is stale: npm run types");
    process.exitCode = 1;
  }
}
