// node-redis with its defaults: requests, a queue, a stream, a subscription, scripts, transactions, new connections.
import { createClient, createSentinel, defineScript } from 'redis';
import { each, forever, host, master, port, sentinels, tell } from './reporting.mjs';

const scripts = {
  countTo: defineScript({
    SCRIPT: "return redis.call('incr', KEYS[1])",
    NUMBER_OF_KEYS: 1,
    parseCommand: (parser, key) => parser.pushKey(key),
    transformReply: (reply) => reply,
  }),
};

async function connect() {
  const client = sentinels
    ? createSentinel({ name: master, sentinelRootNodes: sentinels, masterPoolSize: 4, scripts })
    : createClient({ socket: { host, port }, scripts });
  client.on('error', () => {});
  await client.connect();
  return client;
}

const shared = await connect();

each('loop', 10, (n) => shared.incr(`loop:${n}`));
each('scripts', 20, (n) => shared.countTo(`scripts:${n}`));
each('transactions', 20, async (n) => (await shared.multi().incr(`transactions:${n}`).get(`transactions:${n}`).exec())[0]);
each('connections', 250, async (n) => {
  const client = await connect();
  try {
    return await client.incr(`connections:${n}`);
  } finally {
    await client.destroy();
  }
});

const queue = await connect();
each('queue', 20, async (n) => { await shared.rPush('queue', String(n)); tell('queue', 'sent', n); });
forever('queue', async () => {
  const item = await queue.blPop('queue', 5);
  if (item) tell('queue', 'done', item.element);
});

const stream = await connect();
await stream.xGroupCreate('stream', 'group', '$', { MKSTREAM: true }).catch(() => {});
each('stream', 20, async (n) => { await shared.xAdd('stream', '*', { n: String(n) }); tell('stream', 'sent', n); });
// '0' reads the unacknowledged entries again, '>' the new ones.
let from = '0';
forever('stream', async () => {
  try {
    const found = await stream.xReadGroup('group', 'consumer', { key: 'stream', id: from }, { COUNT: 10, BLOCK: 2000 });
    const entries = found?.[0].messages ?? [];
    for (const { id, message } of entries) {
      await stream.xAck('stream', 'group', id);
      tell('stream', 'done', message.n);
    }
    if (!entries.length) from = '>';
  } catch (error) {
    from = '0';
    throw error;
  }
});

const subscriber = await connect();
await subscriber.subscribe('news', (n) => tell('pubsub', 'done', n));
each('pubsub', 20, async (n) => { await shared.publish('news', String(n)); });
