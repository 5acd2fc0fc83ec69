package io.respool;

import org.apache.commons.pool2.PooledObject;
import org.apache.commons.pool2.impl.DefaultPooledObject;
import org.apache.commons.pool2.impl.GenericObjectPoolConfig;
import redis.clients.jedis.ClientSetInfoConfig;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.providers.PooledConnectionProvider;

/** Makes connections of Jedis to sessions. Jedis takes them for pipelines, MULTI and pub/sub. */
final class Connections extends ConnectionFactory {
  /** Connections that are kept for the next pipeline. */
  private static final int IDLE_MAX = 64;

  private final JedisSocketFactory sockets;
  private final JedisClientConfig config;

  private Connections(JedisSocketFactory sockets, JedisClientConfig config) {
    super(sockets, config);
    this.sockets = sockets;
    this.config = config;
  }

  @Override
  public PooledObject<Connection> makeObject() {
    return new DefaultPooledObject<>(new SessionConnection(sockets, config));
  }

  static PooledConnectionProvider provider(JedisSocketFactory sockets, JedisClientConfig config) {
    GenericObjectPoolConfig<Connection> pool = new GenericObjectPoolConfig<>();
    // A session needs some hundred bytes, and nothing of the system. The bound is sessions-max.
    pool.setMaxTotal(-1);
    pool.setMaxIdle(IDLE_MAX);
    pool.setTestOnBorrow(true);
    pool.setJmxEnabled(false);
    return new PooledConnectionProvider(new Connections(sockets, config), pool);
  }

  /** The session knows whether it is of use. Jedis would ask the server. */
  @Override
  public boolean validateObject(PooledObject<Connection> pooled) {
    Connection connection = pooled.getObject();
    if (!connection.isConnected()) {
      return false;
    }
    int timeout = connection.getSoTimeout();
    try {
      connection.setSoTimeout(StreamSocket.PROBE);
      connection.setSoTimeout(timeout);
      return true;
    } catch (JedisConnectionException e) {
      return false;
    }
  }

  /** The protocol is fixed, so that calls and connections agree without a server to ask. */
  static JedisClientConfig config(boolean resp3) {
    DefaultJedisClientConfig.Builder builder = DefaultJedisClientConfig.builder();
    // Requests have the limits of the client.
    builder.socketTimeoutMillis(0);
    builder.blockingSocketTimeoutMillis(StreamSocket.SUBSCRIBER_TIMEOUT);
    try {
      // Jedis 5.
      builder.protocol(resp3 ? RedisProtocol.RESP3 : RedisProtocol.RESP2);
      builder.clientSetInfoConfig(ClientSetInfoConfig.DISABLED);
    } catch (LinkageError e) {
      if (resp3) {
        throw new UnsupportedOperationException("RESP3 needs Jedis 5 or newer", e);
      }
    }
    return builder.build();
  }
}
