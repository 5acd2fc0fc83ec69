package io.respool;

import java.lang.ref.Reference;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/** Wakes virtual threads that wait for bytes of their streams. */
final class StreamPump {
  private static final int BATCH_MAX = 256;

  private final Native.Handle ready = Native.handle(Native.openReady(), Native::freeReady);
  private final Map<Long, StreamSocket> sockets = new ConcurrentHashMap<>();
  private final AtomicLong lastToken = new AtomicLong();

  StreamPump() {
    Thread thread = new Thread(null, this::run, "respool-streams", 0, false);
    thread.setDaemon(true);
    thread.start();
  }

  /** Returns the token of the socket. */
  long add(StreamSocket socket) {
    long token = lastToken.incrementAndGet();
    sockets.put(token, socket);
    return token;
  }

  void remove(long token) {
    sockets.remove(token);
  }

  /** Reads as far as there are bytes. Otherwise the socket is woken once there are. */
  int read(long stream, long token, byte[] buffer, int at, int length) {
    try {
      return Native.readReady(stream, ready.value, token, buffer, at, length);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  void close() {
    Native.closeReady(ready.value);
    Reference.reachabilityFence(this);
  }

  private void run() {
    long[] tokens = new long[BATCH_MAX];
    while (true) {
      int count = Native.takeReady(ready.value, tokens);
      if (count == 0) {
        break;
      }
      for (int index = 0; index < count; index++) {
        StreamSocket socket = sockets.get(tokens[index]);
        if (socket != null) {
          socket.wakeReader();
        }
      }
    }
    for (StreamSocket socket : sockets.values()) {
      socket.close();
    }
    Reference.reachabilityFence(this);
  }
}
