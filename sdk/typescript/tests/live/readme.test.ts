/** The examples of the README, run by node with the package as it is published. */

import { execFile } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import ts from "typescript";
import { afterAll, beforeAll, expect, test } from "vitest";

import { examples } from "../unit/readme.js";
import { gate } from "./rig.js";

const FOLDER = fileURLToPath(new URL("../../.readme/", import.meta.url));

beforeAll(async () => {
  await gate.open();
  await mkdir(FOLDER, { recursive: true });
});
afterAll(gate.open);

test.each(examples().map((text, n) => ({ text, name: `example ${n + 1}` })))(
  "$name works as it stands",
  async (one) => {
    const here = one.text.replaceAll("http://127.0.0.1:8080", process.env["MAILSLOT_URL"] ?? "");
    const { outputText } = ts.transpileModule(here, {
      compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 },
    });
    const path = `${FOLDER}${one.name.replaceAll(" ", "-")}.mjs`;
    await writeFile(path, outputText);
    const { stdout, stderr } = await promisify(execFile)(process.execPath, [path], { timeout: 50_000 });
    expect(stderr).toBe("");
    expect(stdout).not.toBe("");
  },
);
