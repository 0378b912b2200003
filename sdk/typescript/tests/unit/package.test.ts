/** The package as its users meet it: its types, its examples, and what is not in it. */

import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import ts from "typescript";
import { describe, expect, test } from "vitest";

import { rendered, written } from "../../scripts/types.js";
import { examples } from "./readme.js";

const FOLDER = fileURLToPath(new URL("../../", import.meta.url));
const DOOR = `${FOLDER}src/index.ts`;

const LOOK = ["RunResult", "Receipt", "MessageRecord"] as const;
const EXAMPLES = examples();

/** What is compiled, beside the package's own files: in memory only. Once for all tests, for it takes long. */
const FILES: Readonly<Record<string, string>> = Object.fromEntries([
  ...LOOK.map((type) => [`${FOLDER}look-${type}.ts`, `export type { ${type} as It } from "mailslot";\n`]),
  ...EXAMPLES.map((text, n) => [`${FOLDER}example-${n}.ts`, text]),
  ...EXAMPLES.map((text, n) => [
    `${FOLDER}wrong-${n}.ts`,
    text.replaceAll("result.finalResponse", "result.finishReason"),
  ]),
]);

const PROGRAM = program();

function program(): ts.Program {
  const { config } = ts.readConfigFile(`${FOLDER}tsconfig.json`, (path) => ts.sys.readFile(path));
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, FOLDER);
  const host = ts.createCompilerHost(options);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (path) => path in FILES || fileExists(path);
  host.readFile = (path) => FILES[path] ?? readFile(path);
  host.getSourceFile = (path, ...rest) => {
    const text = FILES[path];
    return text === undefined ? getSourceFile(path, ...rest) : ts.createSourceFile(path, text, ts.ScriptTarget.ES2022);
  };
  return ts.createProgram([DOOR, ...Object.keys(FILES)], { ...options, paths: { mailslot: [DOOR] } }, host);
}

/** What the compiler says of the files of this kind. */
function complaints(kind: "look" | "example" | "wrong"): string[] {
  const files = PROGRAM.getSourceFiles().filter(({ fileName }) => fileName.startsWith(`${FOLDER}${kind}-`));
  return files.flatMap((file) =>
    ts.getPreEmitDiagnostics(PROGRAM, file).map(({ start, messageText }) => {
      const { line } = file.getLineAndCharacterOfPosition(start ?? 0);
      return `${file.fileName}:${line + 1}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}`;
    }),
  );
}

/** The names of everything that a value of an exported type has, however it came by it. */
function members(type: (typeof LOOK)[number]): string[] {
  const checker = PROGRAM.getTypeChecker();
  const file = PROGRAM.getSourceFile(`${FOLDER}look-${type}.ts`);
  const module = file === undefined ? undefined : checker.getSymbolAtLocation(file);
  const [it] = module === undefined ? [] : checker.getExportsOfModule(module);
  if (it === undefined) {
    throw new Error(`${type} is not exported`);
  }
  const found = checker.getDeclaredTypeOfSymbol(checker.getAliasedSymbol(it));
  const open = checker.getIndexInfosOfType(found).length > 0 ? ["anything"] : [];
  return [...checker.getPropertiesOfType(found).map((property) => property.name), ...open].sort();
}

test("the types on the wire are those of the schemas", async () => {
  expect(await written(), "src/wire.ts is stale: npm run types").toBe(await rendered());
});

describe("what is not there", () => {
  test("a result says how nothing ended", () => {
    expect(complaints("look")).toEqual([]);
    expect(members("RunResult")).toEqual([
      "events",
      "finalResponse",
      "from",
      "message",
      "messageId",
      "sessionId",
      "to",
    ]);
  });

  test("a receipt says that a message is kept, and nothing else", () => {
    expect(members("Receipt")).toEqual(["cursor", "duplicate", "durability", "messageId"]);
  });

  test("a message's record never says how a turn ended", () => {
    expect(members("MessageRecord")).toEqual([
      "cause",
      "cursor",
      "delivery",
      "due",
      "messageId",
      "reason",
      "state",
      "step",
      "turn",
    ]);
  });

  test("there is no dependency, and one door", () => {
    const own = JSON.parse(readFileSync(`${FOLDER}package.json`, "utf8")) as Record<string, unknown>;
    expect(own["dependencies"] ?? own["peerDependencies"] ?? own["optionalDependencies"]).toBeUndefined();
    expect(Object.keys(own["exports"] as object)).toEqual(["."]);
    const pinned = Object.values(own["devDependencies"] as Record<string, string>);
    expect(pinned.filter((version) => !/^[0-9]+\.[0-9]+\.[0-9]+$/.test(version))).toEqual([]);
  });
});

describe("an example of the README", () => {
  test("there are some", () => expect(EXAMPLES.length).toBeGreaterThanOrEqual(7));

  test("has types that hold", () => {
    expect(complaints("example")).toEqual([]);
  });

  test("would not be believed if they did not", () => {
    expect(complaints("wrong").join()).toContain("'finishReason' does not exist on type 'RunResult'");
  });
});
