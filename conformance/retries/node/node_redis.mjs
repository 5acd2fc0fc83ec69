// Runs GET, INCR and a pipeline with node-redis. `run` explains the arguments and the lines.
import { createClient, createCluster } from "redis";
import { serve } from "./lines.mjs";

const [kind, port] = process.argv.slice(2);
const url = `redis://127.0.0.1:${port}`;
const client = kind === "cluster" ? createCluster({ rootNodes: [{ url }] }) : createClient({ url });
client.on("error", () => {});
await client.connect();
await serve(async (name, keys) => {
  if (name !== "pipeline") return client[name](keys[0]);
  const pipeline = client.multi();
  for (const key of keys) pipeline.incr(key);
  return pipeline.execAsPipeline();
});
