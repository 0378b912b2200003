// What AsyncAPI's own parser says about the documents named on the command line: one JSON object, {file: [finding…]}.
// A finding that there is a newer AsyncAPI than the one a document is written in says nothing against the document.
const { readFileSync } = require("node:fs");
const { Parser } = require("@asyncapi/parser");

async function main() {
  const parser = new Parser();
  const said = {};
  for (const file of process.argv.slice(2)) {
    const { diagnostics } = await parser.parse(readFileSync(file, "utf8"));
    said[file] = diagnostics
      .filter((each) => each.code !== "asyncapi-latest-version")
      .map((each) => `${each.code} at ${each.path.join("/")}: ${each.message}`);
  }
  process.stdout.write(JSON.stringify(said));
}

main();
