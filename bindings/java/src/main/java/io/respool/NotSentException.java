package io.respool;

import redis.clients.jedis.exceptions.JedisConnectionException;

/**
 * The request was surely not executed. It may be sent again. The message says why it failed.
 */
public final class NotSentException extends JedisConnectionException {
  private static final long serialVersionUID = 1L;

  NotSentException(String message) {
    super(message);
  }
}
