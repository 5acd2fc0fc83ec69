// ioredis with its defaults: requests, a queue, a stream, a subscription, scripts, transactions, new connections.
import Redis from 'ioredis';
import { each, forever, host, master, port, sentinels, tell } from './reporting.mjs';

function connect() {
  const client = sentinels ? new Redis({ sentinels, name: master }) : new Redis(port, host);
  // Without a listener ioredis writes its connection errors to the log: they are no result of a request.
  client.on('error', () => {});
  return client;
}

const shared = connect();
shared.defineCommand('countTo', { numberOfKeys: 1, lua: "return redis.call('incr', KEYS[1])" });

each('loop', 10, (n) => shared.incr(`loop:${n}`));
each('scripts', 20, (n) => shared.countTo(`scripts:${n}`));
each('transactions', 20, async (n) => {
  const replies = await shared.multi().incr(`transactions:${n}`).get(`transactions:${n}`).exec();
  return replies[0][1];
});
each('pipelines', 20, async (n) => {
  const replies = await shared.pipeline().incr(`pipelines:${n}`).get(`pipelines:${n}`).exec();
  for (const [error] of replies) if (error) throw error;
  return replies[0][1];
});
each('connections', 250, async (n) => {
  const client = connect();
  try {
    return await client.incr(`connections:${n}`);
  } finally {
    client.disconnect();
  }
});

const queue = connect();
each('queue', 20, async (n) => { await shared.rpush('queue', n); tell('queue', 'sent', n); });
forever('queue', async () => {
  const item = await queue.blpop('queue', 5);
  if (item) tell('queue', 'done', item[1]);
});

const stream = connect();
await stream.xgroup('CREATE', 'stream', 'group', '$', 'MKSTREAM').catch(() => {});
each('stream', 20, async (n) => { await shared.xadd('stream', '*', 'n', n); tell('stream', 'sent', n); });
// '0' reads the unacknowledged entries again, '>' the new ones.
let from = '0';
forever('stream', async () => {
  try {
    const found = await stream.xreadgroup('GROUP', 'group', 'consumer', 'COUNT', 10, 'BLOCK', 2000, 'STREAMS', 'stream', from);
    const entries = found?.[0][1] ?? [];
    for (const [id, [, n]] of entries) {
      await stream.xack('stream', 'group', id);
      tell('stream', 'done', n);
    }
    if (!entries.length) from = '>';
  } catch (error) {
    from = '0';
    throw error;
  }
});

const subscriber = connect();
subscriber.on('message', (_, n) => tell('pubsub', 'done', n));
await subscriber.subscribe('news');
each('pubsub', 20, async (n) => { await shared.publish('news', n); });
