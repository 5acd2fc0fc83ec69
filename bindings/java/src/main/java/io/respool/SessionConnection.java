package io.respool;

import java.util.List;
import redis.clients.jedis.Connection;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * A connection whose single replies tell the outcome by the type of their exception. The replies of
 * a pipeline are errors of their responses.
 */
final class SessionConnection extends Connection {
  private static final String NOT_SENT = "NOTSENT respool: ";
  private static final String UNKNOWN = "UNKNOWN respool: ";

  SessionConnection(JedisSocketFactory sockets, JedisClientConfig config) {
    super(sockets, config);
  }

  /** The next reply. */
  @Override
  public Object getOne() {
    try {
      return super.getOne();
    } catch (JedisDataException e) {
      throw outcome(e);
    }
  }

  /** The next reply, which is a list, such as that of EXEC. */
  @Override
  public List<Object> getObjectMultiBulkReply() {
    try {
      return super.getObjectMultiBulkReply();
    } catch (JedisDataException e) {
      throw outcome(e);
    }
  }

  /** The exception of a request without a reply, or the error of the server. */
  private static JedisException outcome(JedisDataException error) {
    String text = String.valueOf(error.getMessage());
    if (text.startsWith(NOT_SENT)) {
      return new NotSentException(text);
    }
    return text.startsWith(UNKNOWN) ? new UnknownOutcomeException(text) : error;
  }
}
