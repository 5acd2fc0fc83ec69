// The reports of an application in JavaScript, and the order to stop.
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';

let stopped = false;
createInterface({ input: process.stdin }).on('line', () => (stopped = true)).on('close', () => process.exit(0));

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
export const tell = (activity, event, detail) => writeSync(1, `${activity} ${event} ${String(detail).replace(/\s+/g, ' ')}\n`);

// An error that no part of the process catches is an error of the application, too.
process.on('unhandledRejection', (error) => tell('unhandled', 'error', error));

// Does `step` with 1, 2, 3, ... until told to stop; `step` says whether the item was done or only sent.
export async function each(activity, pace, step) {
  for (let number = 1; !stopped; number++) {
    try {
      const times = await step(number);
      for (let time = 0; time < (times ?? 0); time++) tell(activity, 'done', number);
    } catch (error) {
      tell(activity, 'error', error);
    }
    await sleep(pace);
  }
}

// Does `step` for ever, as a consumer does.
export async function forever(activity, step) {
  for (;;) {
    try {
      await step();
    } catch (error) {
      tell(activity, 'error', error);
      await sleep(100);
    }
  }
}

export const host = process.env.REDIS_HOST;
export const port = Number(process.env.REDIS_PORT);
export const master = process.env.REDIS_MASTER;
export const sentinels = process.env.REDIS_SENTINELS?.split(',').map((address) => {
  const [host, port] = address.split(':');
  return { host, port: Number(port) };
});
