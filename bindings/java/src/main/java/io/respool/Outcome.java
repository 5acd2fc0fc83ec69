package io.respool;

import java.io.ByteArrayInputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.RedisInputStream;

/**
 * The outcome of a call, as the native library gives it: a reply in the protocol of Redis, or a
 * letter and a text.
 */
final class Outcome {
  /** Stands for a reply that Jedis reads: null is a reply. */
  private static final Object OTHER = new Object();

  /** The bytes of one outcome, or of a batch. */
  final byte[] bytes;

  private final int from;
  private final int to;
  /** The next byte. */
  private int at;

  Outcome(byte[] bytes) {
    this(bytes, 0, bytes.length);
  }

  Outcome(byte[] bytes, int from, int to) {
    this.bytes = bytes;
    this.from = from;
    this.to = to;
    this.at = from;
  }

  static Outcome closed() {
    return new Outcome("Nthe client was closed".getBytes(StandardCharsets.UTF_8));
  }

  /**
   * The reply as Jedis has it before its builders. Errors of the server are the exceptions that
   * Jedis throws for them.
   */
  Object decode() {
    throwFailure();
    Object reply = value();
    return reply == OTHER ? readByJedis() : reply;
  }

  /** The bytes of the reply. */
  byte[] reply() {
    throwFailure();
    if (bytes[from] == '-') {
      readByJedis();
    }
    return from == 0 && to == bytes.length ? bytes : Arrays.copyOfRange(bytes, from, to);
  }

  /** Throws the exception of a request without a reply. */
  void throwFailure() {
    switch (bytes[from]) {
      case 'N':
        throw new NotSentException(text());
      case 'U':
        throw new UnknownOutcomeException(text());
      case 'I':
        throw new JedisException(text());
      default:
    }
  }

  private String text() {
    return new String(bytes, from + 1, to - from - 1, StandardCharsets.UTF_8);
  }

  // Jedis 8 has another one, which is not in Jedis 7.
  @SuppressWarnings("deprecation")
  private Object readByJedis() {
    ByteArrayInputStream stream = new ByteArrayInputStream(bytes, from, to - from);
    try {
      return Protocol.read(new RedisInputStream(stream, Math.max(1, Math.min(to - from, 8192))));
    } catch (JedisConnectionException e) {
      throw new UnknownOutcomeException("the reply cannot be read: " + e.getMessage());
    }
  }

  /** A value of the usual types, or OTHER. */
  private Object value() {
    switch (bytes[at++]) {
      case '+': {
        int start = at;
        int end = lineEnd();
        return Arrays.copyOfRange(bytes, start, end);
      }
      case ':':
        return number();
      case '$': {
        int length = (int) number();
        if (length < 0) {
          return null;
        }
        int start = at;
        at += length + 2;
        return Arrays.copyOfRange(bytes, start, start + length);
      }
      case '*':
        return list();
      default:
        return OTHER;
    }
  }

  private Object list() {
    int count = (int) number();
    if (count < 0) {
      return null;
    }
    List<Object> values = new ArrayList<>(count);
    for (int index = 0; index < count; index++) {
      Object value = value();
      if (value == OTHER) {
        return OTHER;
      }
      values.add(value);
    }
    return values;
  }

  /** Takes a line. Returns where its text ends. */
  private int lineEnd() {
    int end = at;
    while (bytes[end] != '\r') {
      end++;
    }
    at = end + 2;
    return end;
  }

  private long number() {
    int start = at;
    int end = lineEnd();
    boolean isNegative = bytes[start] == '-';
    long number = 0;
    for (int index = isNegative || bytes[start] == '+' ? start + 1 : start; index < end; index++) {
      // Downwards: the least number has no positive counterpart.
      number = number * 10 - (bytes[index] - '0');
    }
    return isNegative ? number : -number;
  }
}
