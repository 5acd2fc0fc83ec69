package io.respool;

import java.lang.reflect.Field;
import java.net.URI;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.builders.AbstractClientBuilder;
import redis.clients.jedis.executors.CommandExecutor;

/** The code for Jedis 7 and 8. Older ones lack its classes, and do not load this one. */
final class NewJedis {
  private NewJedis() {}

  /** A client that closes the client below it. */
  static RedisClient client(Respool respool) {
    RedisClient.Builder builder = RedisClient.builder();
    set(builder, respool, new RespoolExecutor(respool, true));
    return builder.build();
  }

  static void set(AbstractClientBuilder<?, ?> builder, Respool respool, CommandExecutor executor) {
    checkDatabase(builder, respool);
    builder.clientConfig(respool.config());
    builder.commandExecutor(executor);
    builder.connectionProvider(respool.connections());
  }

  /**
   * Refuses a builder that was configured for another database: its commands would silently use
   * that of the client's URL.
   */
  private static void checkDatabase(AbstractClientBuilder<?, ?> builder, Respool respool) {
    JedisClientConfig config;
    try {
      Field field = AbstractClientBuilder.class.getDeclaredField("clientConfig");
      field.setAccessible(true);
      config = (JedisClientConfig) field.get(builder);
    } catch (ReflectiveOperationException | RuntimeException e) {
      // Another version of Jedis, or one that denies the look.
      return;
    }
    if (config != null && config.getDatabase() != respool.database()) {
      throw new IllegalArgumentException(
          "the configuration has the database " + config.getDatabase() + ", and the URL of respool "
              + "the database " + respool.database() + ": give both the same one");
    }
  }

  /** `limitMs`: the limit of a call, or 0. */
  static RedisClient plainClient(String url, int limitMs, boolean resp3) {
    URI uri = URI.create(url);
    boolean isJedis = "redis".equals(uri.getScheme()) || "rediss".equals(uri.getScheme());
    if (!isJedis || uri.getHost() == null) {
      throw new UnsupportedOperationException(
          "respool cannot run here, and a plain client of Jedis takes no such URL: "
              + NativeLibrary.problem());
    }
    if (uri.getPort() < 0) {
      String rest = uri.getRawPath() == null ? "" : uri.getRawPath();
      String user = uri.getRawUserInfo() == null ? "" : uri.getRawUserInfo() + "@";
      uri = URI.create(uri.getScheme() + "://" + user + uri.getHost() + ":6379" + rest);
    }
    DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder(uri);
    if (limitMs > 0) {
      config.socketTimeoutMillis(limitMs);
    }
    if (resp3) {
      config.resp3();
    }
    HostAndPort server = new HostAndPort(uri.getHost(), uri.getPort());
    return RedisClient.builder().hostAndPort(server).clientConfig(config.build()).build();
  }
}
