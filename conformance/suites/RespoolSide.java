package redis.clients.jedis;

import io.respool.Respool;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import redis.clients.jedis.executors.CommandExecutor;

/** Makes the clients of Jedis' own tests: plain ones, or with the property those of respool. */
public final class RespoolSide {
  private static final boolean IS_RESPOOL = Boolean.getBoolean("conformance.respool");
  private static final Map<Boolean, Respool> SHARED = new ConcurrentHashMap<>();

  private RespoolSide() {}

  public static boolean isRespool() {
    return IS_RESPOOL;
  }

  /** The test closes it. */
  public static RedisClient client(EndpointConfig endpoint, RedisProtocol protocol) {
    return options(isResp3(protocol)).jedis(url(endpoint));
  }

  /** The protocol of a session is set by Jedis, as on a socket. */
  public static JedisSocketFactory sockets(EndpointConfig endpoint) {
    if (!IS_RESPOOL) {
      return new DefaultJedisSocketFactory(endpoint.getHostAndPort());
    }
    return shared(endpoint, false).sockets();
  }

  public static CommandExecutor executor(
      EndpointConfig endpoint, RedisProtocol protocol, CommandExecutor plain) {
    return IS_RESPOOL ? shared(endpoint, isResp3(protocol)).executor() : plain;
  }

  private static Respool shared(EndpointConfig endpoint, boolean resp3) {
    return SHARED.computeIfAbsent(resp3, key -> options(key).open(url(endpoint)));
  }

  private static Respool.Options options(boolean resp3) {
    Respool.Options options = Respool.options();
    return resp3 ? options.resp3() : options;
  }

  /** Without a protocol, Jedis takes RESP3 where the server has it. */
  private static boolean isResp3(RedisProtocol protocol) {
    return protocol != RedisProtocol.RESP2;
  }

  private static String url(EndpointConfig endpoint) {
    return "redis://:" + endpoint.getPassword() + "@" + endpoint.getHostAndPort();
  }
}
