import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.springframework.dao.DataAccessException;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.connection.RedisSentinelConfiguration;
import org.springframework.data.redis.connection.RedisStandaloneConfiguration;
import org.springframework.data.redis.connection.jedis.JedisConnectionFactory;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.data.redis.connection.stream.Consumer;
import org.springframework.data.redis.connection.stream.MapRecord;
import org.springframework.data.redis.connection.stream.ReadOffset;
import org.springframework.data.redis.connection.stream.StreamOffset;
import org.springframework.data.redis.connection.stream.StreamReadOptions;
import org.springframework.data.redis.core.RedisOperations;
import org.springframework.data.redis.core.SessionCallback;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.data.redis.core.script.DefaultRedisScript;
import org.springframework.data.redis.listener.ChannelTopic;
import org.springframework.data.redis.listener.RedisMessageListenerContainer;

/** Spring Data Redis with its defaults, by Lettuce or by Jedis. */
class SpringApplication {
    @SuppressWarnings("unchecked")
    static void run(boolean byJedis) throws Exception {
        RedisConnectionFactory factory = connect(byJedis);
        StringRedisTemplate template = new StringRedisTemplate(factory);
        Applications.each("loop", 10, n -> template.opsForValue().increment("loop:" + n));
        DefaultRedisScript<Long> script = new DefaultRedisScript<>("return redis.call('incr', KEYS[1])", Long.class);
        Applications.each("scripts", 20, n -> template.execute(script, List.of("scripts:" + n)));
        Applications.each("transactions", 20, n -> (Long) template.execute(new SessionCallback<List<Object>>() {
            @Override
            @SuppressWarnings("unchecked")
            public List<Object> execute(RedisOperations operations) throws DataAccessException {
                operations.multi();
                operations.opsForValue().increment("transactions:" + n);
                operations.opsForValue().get("transactions:" + n);
                return operations.exec();
            }
        }).get(0));
        Applications.each("connections", 250, n -> {
            RedisConnectionFactory other = connect(byJedis);
            try {
                return new StringRedisTemplate(other).opsForValue().increment("connections:" + n);
            } finally {
                ((org.springframework.beans.factory.DisposableBean) other).destroy();
            }
        });

        Applications.send("queue", 20, n -> template.opsForList().rightPush("queue", String.valueOf(n)));
        Applications.take("queue", () -> template.opsForList().leftPop("queue", Duration.ofSeconds(5)));

        template.opsForStream().createGroup("stream", ReadOffset.latest(), "group");
        Applications.send("stream", 20, n -> {
            template.opsForStream().add("stream", Map.of("n", String.valueOf(n)));
            return 1;
        });
        // First the unacknowledged entries, then the new ones, one by one.
        boolean[] again = {true};
        Applications.take("stream", () -> {
            ReadOffset from = again[0] ? ReadOffset.from("0") : ReadOffset.lastConsumed();
            boolean retried = again[0];
            again[0] = true;
            List<MapRecord<String, Object, Object>> found = template.opsForStream().read(Consumer.from("group", "consumer"),
                    StreamReadOptions.empty().count(1).block(Duration.ofSeconds(2)), StreamOffset.create("stream", from));
            if (found == null || found.isEmpty()) {
                again[0] = false;
                return null;
            }
            template.opsForStream().acknowledge("group", found.get(0));
            again[0] = retried;
            return found.get(0).getValue().get("n");
        });

        RedisMessageListenerContainer container = new RedisMessageListenerContainer();
        container.setConnectionFactory(factory);
        container.setRecoveryInterval(500);
        container.addMessageListener((message, pattern) ->
                Applications.tell("pubsub", "done", new String(message.getBody(), StandardCharsets.UTF_8)), new ChannelTopic("news"));
        container.afterPropertiesSet();
        container.start();
        Applications.each("pubsub", 20, n -> {
            template.convertAndSend("news", String.valueOf(n));
            return 0;
        });
    }

    private static RedisConnectionFactory connect(boolean byJedis) {
        boolean bySentinels = !Applications.SENTINELS.isEmpty();
        if (byJedis) {
            JedisConnectionFactory factory = bySentinels
                    ? new JedisConnectionFactory(sentinels()) : new JedisConnectionFactory(server());
            factory.afterPropertiesSet();
            factory.start();
            return factory;
        }
        LettuceConnectionFactory factory = bySentinels
                ? new LettuceConnectionFactory(sentinels()) : new LettuceConnectionFactory(server());
        factory.afterPropertiesSet();
        factory.start();
        return factory;
    }

    private static RedisStandaloneConfiguration server() {
        return new RedisStandaloneConfiguration(Applications.HOST, Applications.PORT);
    }

    private static RedisSentinelConfiguration sentinels() {
        RedisSentinelConfiguration sentinels = new RedisSentinelConfiguration();
        sentinels.setMaster(Applications.MASTER);
        for (String address : Applications.SENTINELS) {
            String[] parts = address.split(":");
            sentinels.sentinel(parts[0], Integer.parseInt(parts[1]));
        }
        return sentinels;
    }
}
