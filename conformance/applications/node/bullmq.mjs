// BullMQ with its defaults: a worker of jobs, whose results the producer hears of by a stream, and a flow of jobs.
import { FlowProducer, Queue, QueueEvents, Worker } from 'bullmq';
import { each, host, master, port, sentinels, tell } from './reporting.mjs';

const connection = { ...(sentinels ? { sentinels, name: master } : { host, port }), maxRetriesPerRequest: null };
// An operator reads the errors of a worker in its log.
const heard = (activity, emitter) => emitter.on('error', (error) => tell(activity, 'error', error));

if (process.argv[2] === 'worker') {
  // One item at a time keeps the worker waiting in BZPOPMIN, where the server is lost.
  const done = (activity) => async (job) => tell(activity, 'done', job.data.n);
  heard('jobs', new Worker('jobs', done('jobs'), { connection }));
  heard('flows', new Worker('flows', async (job) => { if (job.name === 'parent') tell('flows', 'done', job.data.n); }, { connection }));
  heard('results', new Worker('results', async (job) => job.data.n, { connection }));
} else {
  const open = (type, activity) => { const it = new type(activity, { connection }); heard(activity, it); return it; };
  const jobs = open(Queue, 'jobs');
  each('jobs', 50, async (n) => { await jobs.add('job', { n }); tell('jobs', 'sent', n); });

  const flows = new FlowProducer({ connection });
  heard('flows', flows);
  each('flows', 100, async (n) => {
    const queueName = 'flows';
    await flows.add({ name: 'parent', queueName, data: { n }, children: [{ name: 'child', queueName, data: {} }] });
    tell('flows', 'sent', n);
  });

  const results = open(Queue, 'results');
  const events = open(QueueEvents, 'results');
  await events.waitUntilReady();
  each('results', 50, async (n) => {
    const job = await results.add('job', { n });
    return (await job.waitUntilFinished(events, 10000)) === n ? 1 : 0;
  });
}
