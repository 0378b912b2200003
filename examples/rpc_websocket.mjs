// A JSON-RPC connection over WebSocket, with the npm package `ws`.
//
// Shows: `initialize`, a subscription from a cursor, `session/prompt`, whose result is exactly `{messageId}`, the events as
// notifications, a refusal with its problem, and a batch.
//
// Run it beside `mailslot up`, in a folder of your own (Node 20 or newer):
//
//     npm install ws
//     cp …/examples/rpc_websocket.mjs . && node rpc_websocket.mjs
//
// MAILSLOT_URL says where the doors are (default http://127.0.0.1:8080).

import WebSocket from "ws";

const url = (process.env.MAILSLOT_URL ?? "http://127.0.0.1:8080").replace(/^http/, "ws");
const session = process.argv[2] ?? "ws";
const socket = new WebSocket(`${url}/v1/rpc`);

// JSON-RPC by hand: an answer has the id of its call, a notification has none.
const waiting = new Map();
let calls = 0;

function frame(method, params) {
  calls += 1;
  const answer = new Promise((resolve, reject) => waiting.set(calls, { resolve, reject }));
  return { answer, text: { jsonrpc: "2.0", id: calls, method, params } };
}

function call(method, params = {}) {
  const { answer, text } = frame(method, params);
  socket.send(JSON.stringify(text));
  return answer;
}

let rested;
const rest = new Promise((resolve) => (rested = resolve));

function hear({ method, params }) {
  if (!("seq" in params)) return; // the session's level, which opens every subscription
  console.log("event", params.seq, params.type);
  if (params.type === "agent/status" && params.data.status === "idle") rested();
}

socket.on("message", (data) => {
  for (const said of [JSON.parse(data)].flat()) {
    if (said.method) {
      hear(said);
      continue;
    }
    const { resolve, reject } = waiting.get(said.id);
    if (said.error) reject(said.error);
    else resolve(said.result);
  }
});
await new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));

await call("initialize", { protocolVersion: 1 });
await call("session/new", { sessionId: session });
await call("session/subscribe", { sessionId: session, after: 0 });
console.log("receipt", JSON.stringify(await call("session/prompt", { sessionId: session, content: "hello from ws" })));
await rest;

// Several calls in one frame are answered in one frame.
const both = ["session/status", "session/queue"].map((method) => frame(method, { sessionId: session }));
socket.send(JSON.stringify(both.map(({ text }) => text)));
const [level, queue] = await Promise.all(both.map(({ answer }) => answer));
console.log("level", level.status, level.cursor);
console.log("queued", queue.messages.length);

// A refusal is an error -32000; its data is the problem that REST would answer with.
await call("session/message", { sessionId: session, messageId: "nobody-sent-this" }).catch((error) =>
  console.log("refused", error.code, error.data.code),
);

await call("shutdown");
socket.close();
