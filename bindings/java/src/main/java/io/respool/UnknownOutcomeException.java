package io.respool;

import redis.clients.jedis.exceptions.JedisConnectionException;

/**
 * The request was sent, and may have been executed. The message says why no reply has come.
 */
public final class UnknownOutcomeException extends JedisConnectionException {
  private static final long serialVersionUID = 1L;

  UnknownOutcomeException(String message) {
    super(message);
  }
}
