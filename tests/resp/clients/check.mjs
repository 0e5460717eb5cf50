// What ioredis makes of the gateway's replies: it pipelines, watches nothing, and pops a job. Prints JSON.
import Redis from "ioredis";

const { HOST, PORT, WORKER, KEY } = process.env;
const client = new Redis({ host: HOST, port: Number(PORT), password: KEY });
const said = { worker_id: WORKER, hostname: "node", agw_version: "1", capabilities: { tools: [] }, max_concurrent_jobs: 9 };
await client.call("WORKER.REGISTER", JSON.stringify(said), "RELEASE");
const values = (replies) => replies.map(([problem, value]) => (problem ? problem.message : value));
const piped = values(
  await client.pipeline().set("k", "v").get("k").get("none").hset("h", "a", "1").hgetall("h").zadd("z", 1.5, "m")
    .zrange("z", 0, -1, "WITHSCORES").get("h").lpush("l", "x", "y").lrange("l", 0, -1).exec(),
);
const multi = values(await client.multi().set("m", "1").get("m").exec());
await client.lpush("queue:in", "a", "b");
const popped = [await client.brpop("queue:in", 1), await client.rpop("queue:in"), await client.rpop("queue:in")];
const removed = await client.lrem("queue:processing", 1, "a");
console.log(JSON.stringify({ piped, multi, popped, removed }));
client.disconnect();
