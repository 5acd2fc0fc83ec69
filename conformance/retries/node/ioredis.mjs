// Runs GET, INCR and a pipeline with ioredis. `run` explains the arguments and the lines.
import { Redis, Cluster } from "ioredis";
import { serve } from "./lines.mjs";

const [kind, port] = process.argv.slice(2);
const node = { host: "127.0.0.1", port: Number(port) };
const client = kind === "cluster" ? new Cluster([node]) : new Redis(node);
client.on("error", () => {});
await serve(async (name, keys) => {
  if (name !== "pipeline") return client[name](keys[0]);
  const pipeline = client.pipeline();
  for (const key of keys) pipeline.incr(key);
  for (const [error] of await pipeline.exec()) if (error) throw error;
});
