import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.BatchOptions;
import org.redisson.api.RBatch;
import org.redisson.api.RBlockingQueue;
import org.redisson.api.RFuture;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/** Redisson with its defaults: counters, a blocking queue, a topic, locks (which are scripts), batches. */
class RedissonApplication {
    static void run() {
        RedissonClient client = connect();
        Applications.each("loop", 10, n -> client.getAtomicLong("loop:" + n).incrementAndGet());
        Applications.each("scripts", 20, n -> client.getScript(StringCodec.INSTANCE).<Long>eval(
                RScript.Mode.READ_WRITE, "return redis.call('incr', KEYS[1])", RScript.ReturnType.LONG, List.of("scripts:" + n)));
        Applications.each("transactions", 20, n -> {
            RBatch batch = client.createBatch(BatchOptions.defaults().executionMode(BatchOptions.ExecutionMode.IN_MEMORY_ATOMIC));
            RFuture<Long> times = batch.getAtomicLong("transactions:" + n).incrementAndGetAsync();
            batch.getBucket("transactions").setAsync("some");
            batch.execute();
            return times.get();
        });
        Applications.each("locks", 50, n -> {
            var lock = client.getLock("lock");
            lock.lock();
            try {
                return client.getAtomicLong("locks:" + n).incrementAndGet();
            } finally {
                lock.unlock();
            }
        });
        Applications.each("connections", 1000, n -> {
            RedissonClient other = connect();
            try {
                return other.getAtomicLong("connections:" + n).incrementAndGet();
            } finally {
                other.shutdown(0, 1, TimeUnit.SECONDS);
            }
        });

        RBlockingQueue<String> queue = client.getBlockingQueue("queue", StringCodec.INSTANCE);
        Applications.send("queue", 20, n -> queue.add(String.valueOf(n)) ? 1 : 0);
        Applications.take("queue", () -> queue.poll(5, TimeUnit.SECONDS));

        client.getTopic("news", StringCodec.INSTANCE).addListener(String.class, (channel, n) -> Applications.tell("pubsub", "done", n));
        Applications.each("pubsub", 20, n -> {
            client.getTopic("news", StringCodec.INSTANCE).publish(String.valueOf(n));
            return 0;
        });
    }

    private static RedissonClient connect() {
        Config config = new Config();
        if (Applications.SENTINELS.isEmpty()) {
            config.useSingleServer().setAddress("redis://" + Applications.HOST + ":" + Applications.PORT)
                    .setConnectionMinimumIdleSize(4).setConnectionPoolSize(16);
        } else {
            var servers = config.useSentinelServers().setMasterName(Applications.MASTER).setCheckSentinelsList(false);
            Applications.SENTINELS.forEach(address -> servers.addSentinelAddress("redis://" + address));
            servers.setReadMode(org.redisson.config.ReadMode.MASTER)
                    .setMasterConnectionMinimumIdleSize(4).setMasterConnectionPoolSize(16);
        }
        return Redisson.create(config);
    }
}
