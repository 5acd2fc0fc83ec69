package io.respool;

import java.nio.charset.StandardCharsets;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.args.Rawable;

/** Encodes requests: arrays of bulk strings. */
final class Request {
  private byte[] bytes;
  private int at;

  private Request(byte[] bytes) {
    this.bytes = bytes;
  }

  static byte[] of(CommandArguments arguments) {
    byte[][] raw = new byte[arguments.size()][];
    int index = 0;
    for (Rawable argument : arguments) {
      raw[index++] = argument.getRaw();
    }
    return of(raw);
  }

  static byte[] of(String... arguments) {
    byte[][] raw = new byte[arguments.length][];
    for (int index = 0; index < raw.length; index++) {
      raw[index] = arguments[index].getBytes(StandardCharsets.UTF_8);
    }
    return of(raw);
  }

  static byte[] of(byte[]... arguments) {
    long length = headLength(arguments.length);
    for (byte[] argument : arguments) {
      length += headLength(argument.length) + argument.length + 2;
    }
    if (length > Integer.MAX_VALUE - 8) {
      throw new IllegalArgumentException("a request has at most 2 GiB, and this one has " + length);
    }
    Request request = new Request(new byte[(int) length]);
    request.head('*', arguments.length);
    for (byte[] argument : arguments) {
      request.head('$', argument.length);
      System.arraycopy(argument, 0, request.bytes, request.at, argument.length);
      request.at += argument.length;
      request.lineEnd();
    }
    return request.bytes;
  }

  /** The length of a type, a number and the end of the line. */
  private static int headLength(int number) {
    return 3 + digits(number);
  }

  private static int digits(int number) {
    int digits = 1;
    for (int rest = number; rest >= 10; rest /= 10) {
      digits++;
    }
    return digits;
  }

  private void head(char type, int number) {
    bytes[at++] = (byte) type;
    int end = at + digits(number);
    for (int place = end - 1, rest = number; place >= at; place--, rest /= 10) {
      bytes[place] = (byte) ('0' + rest % 10);
    }
    at = end;
    lineEnd();
  }

  private void lineEnd() {
    bytes[at++] = '\r';
    bytes[at++] = '\n';
  }
}
