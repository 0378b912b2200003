/** One owned run by the TypeScript client, for a scenario: prints its message and where its interval ended. */

const [client, baseUrl, sessionId, task, timeoutMs] = process.argv.slice(2);
const { Client } = await import(client);
const result = await new Client({ baseUrl }).session(sessionId).run(task, { timeoutMs: Number(timeoutMs) });
console.log(JSON.stringify({ messageId: result.messageId, to: result.to }));
