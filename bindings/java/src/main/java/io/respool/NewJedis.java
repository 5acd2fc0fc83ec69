package io.respool;

import java.net.URI;
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
    builder.clientConfig(respool.config());
    builder.commandExecutor(executor);
    builder.connectionProvider(respool.connections());
  }

  static RedisClient plainClient(String url) {
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
    return RedisClient.create(uri);
  }
}
