import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulConnection;
import io.lettuce.core.cluster.api.async.RedisClusterAsyncCommands;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import org.redisson.Redisson;
import org.redisson.api.RBatch;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Response;
import redis.clients.jedis.UnifiedJedis;

/** Runs GET, INCR and a pipeline with Jedis, Lettuce and Redisson. `run` explains the arguments and the lines. */
public class Main {
    interface Library {
        Object run(String name, List<String> keys) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        boolean cluster = arguments[1].equals("cluster");
        int port = Integer.parseInt(arguments[2]);
        Library library = switch (arguments[0]) {
            case "jedis" -> jedis(cluster, port);
            case "lettuce" -> lettuce(cluster, port);
            default -> redisson(cluster, port);
        };
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null; ) {
            List<String> words = Arrays.asList(line.split(" "));
            String answer;
            try {
                library.run(words.get(0), words.subList(1, words.size()));
                answer = "{\"value\": \"\"}";
            } catch (ExecutionException error) {
                answer = "{\"error\": \"" + error.getCause().getClass().getSimpleName() + "\"}";
            } catch (Exception error) {
                answer = "{\"error\": \"" + error.getClass().getSimpleName() + "\"}";
            }
            System.out.println(answer);
        }
        System.exit(0);
    }

    static Library jedis(boolean cluster, int port) {
        HostAndPort node = new HostAndPort("127.0.0.1", port);
        UnifiedJedis client = cluster
                ? redis.clients.jedis.RedisClusterClient.create(node)
                : redis.clients.jedis.RedisClient.create(node);
        return (name, keys) -> {
            if (!name.equals("PIPELINE")) {
                return name.equals("GET") ? client.get(keys.get(0)) : client.incr(keys.get(0));
            }
            List<Response<Long>> responses = new ArrayList<>();
            try (AbstractPipeline pipeline = client.pipelined()) {
                for (String key : keys) {
                    responses.add(pipeline.incr(key));
                }
            }
            for (Response<Long> response : responses) {
                response.get();
            }
            return null;
        };
    }

    static Library lettuce(boolean cluster, int port) {
        RedisURI node = RedisURI.create("127.0.0.1", port);
        StatefulConnection<String, String> connection;
        RedisClusterAsyncCommands<String, String> client;
        if (cluster) {
            var clusterConnection = io.lettuce.core.cluster.RedisClusterClient.create(node).connect();
            connection = clusterConnection;
            client = clusterConnection.async();
        } else {
            var nodeConnection = io.lettuce.core.RedisClient.create(node).connect();
            connection = nodeConnection;
            client = nodeConnection.async();
        }
        return (name, keys) -> {
            if (!name.equals("PIPELINE")) {
                return name.equals("GET") ? client.get(keys.get(0)).get() : client.incr(keys.get(0)).get();
            }
            connection.setAutoFlushCommands(false);
            List<RedisFuture<Long>> futures = new ArrayList<>();
            for (String key : keys) {
                futures.add(client.incr(key));
            }
            connection.flushCommands();
            connection.setAutoFlushCommands(true);
            for (RedisFuture<Long> future : futures) {
                future.get();
            }
            return null;
        };
    }

    static Library redisson(boolean cluster, int port) {
        Config config = new Config();
        String node = "redis://127.0.0.1:" + port;
        if (cluster) {
            config.useClusterServers().addNodeAddress(node);
        } else {
            config.useSingleServer().setAddress(node);
        }
        RedissonClient client = Redisson.create(config);
        return (name, keys) -> switch (name) {
            case "GET" -> client.getBucket(keys.get(0), StringCodec.INSTANCE).get();
            case "INCR" -> client.getAtomicLong(keys.get(0)).incrementAndGet();
            default -> {
                RBatch batch = client.createBatch();
                for (String key : keys) {
                    batch.getAtomicLong(key).incrementAndGetAsync();
                }
                yield batch.execute();
            }
        };
    }
}
