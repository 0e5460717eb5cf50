// Serves the tool `weather` of an agent (agent.py) with a stock Redis client for Node (ioredis) and nothing of Holdfast.
//   npm ci && HOST=127.0.0.1 PORT=6380 WORKER=w1 KEY=<64 hex digits> node tool.mjs
import Redis from "ioredis";
import os from "node:os";

const { HOST, PORT, WORKER, KEY } = process.env;
const client = new Redis({ host: HOST, port: Number(PORT), password: KEY, enableReadyCheck: false });
const said = {
  worker_id: WORKER,
  hostname: os.hostname(),
  agw_version: "0.1.0",
  capabilities: { tools: ["weather"] },
  tags: { by: "redis" },
};
await client.call("WORKER.REGISTER", JSON.stringify(said), "RELEASE");
for (;;) {
  const claimed = await client.call("JOB.CLAIM", "outside", "BLOCK", "5000");
  await client.call("WORKER.HEARTBEAT", WORKER);
  for (const [text, token] of claimed) {
    const job = JSON.parse(text);
    const { city } = job.payload;
    if (typeof city === "string") {
      const answer = { city, sky: "rain", by: "ioredis" };
      await client.call("JOB.COMPLETE", job.job_id, token, JSON.stringify(answer));
    } else {
      // The model reads this, and may do better.
      await client.call("JOB.FAIL", job.job_id, token, "city must be a text", "NEVER");
    }
  }
}
