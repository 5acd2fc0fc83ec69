package io.respool;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.ref.Reference;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.locks.LockSupport;

/** A session of the client. It is a socket to Jedis, without a socket of the system. */
final class StreamSocket extends Socket {
  /** This timeout is none: setting it fails if the next user of a pool must not get the session. */
  static final int PROBE = -1;
  /** Jedis sets this timeout for subscriptions. It has no end. */
  static final int SUBSCRIBER_TIMEOUT = Integer.MAX_VALUE;

  /** The threads that wait for room in place of virtual threads. */
  private static final ExecutorService WRITERS =
      Executors.newCachedThreadPool(
          task -> {
            Thread thread = new Thread(task, "respool-writer");
            thread.setDaemon(true);
            return thread;
          });

  /** Not the client: a socket must not keep it, because the pump of streams has all sockets. */
  private final Pumps pumps;
  private final Native.Handle stream;
  private volatile int soTimeout;
  private volatile boolean isClosed;
  private volatile boolean hasSubscribed;

  // A virtual thread that reads.
  private volatile long token;
  private volatile Thread reader;
  private volatile boolean isReady;

  /** `stream`: zero if the client was closed. */
  StreamSocket(Pumps pumps, long stream) {
    this.pumps = pumps;
    this.stream = Native.handle(stream, Native::freeStream);
    if (stream == 0) {
      throw new NotSentException("the client was closed");
    }
  }

  @Override
  public InputStream getInputStream() {
    return new Input();
  }

  @Override
  public OutputStream getOutputStream() {
    return new Output();
  }

  @Override
  public boolean isConnected() {
    return true;
  }

  @Override
  public boolean isBound() {
    return true;
  }

  /**
   * Whether it was closed here. If it were true for a session that has ended, Jedis would open
   * another one in the middle of a transaction.
   */
  @Override
  public boolean isClosed() {
    return isClosed;
  }

  @Override
  public boolean isInputShutdown() {
    return isClosed;
  }

  @Override
  public boolean isOutputShutdown() {
    return isClosed;
  }

  @Override
  public void setSoTimeout(int timeout) throws SocketException {
    if (timeout == SUBSCRIBER_TIMEOUT) {
      hasSubscribed = true;
      soTimeout = 0;
    } else if (timeout != PROBE) {
      soTimeout = timeout;
    } else if (!isReusable()) {
      throw new SocketException("the session is of no use for another user");
    }
  }

  /**
   * Whether the next user of a pool may have the session. Jedis gives a connection back with its
   * subscriptions if a listener has thrown, and the next user would read messages as replies.
   */
  private boolean isReusable() {
    try {
      return !isClosed
          && !hasSubscribed
          && Native.outcome(stream.value) == null
          && !Native.isReadable(stream.value);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** The outcome of requests without a reply, or null while the session goes on. */
  private byte[] outcome() {
    try {
      return Native.outcome(stream.value);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  @Override
  public int getSoTimeout() {
    return soTimeout;
  }

  @Override
  public void setKeepAlive(boolean on) {}

  @Override
  public void setTcpNoDelay(boolean on) {}

  @Override
  public void setReuseAddress(boolean on) {}

  @Override
  public void setSoLinger(boolean on, int linger) {}

  @Override
  public void close() {
    isClosed = true;
    Native.closeStream(stream.value);
    long token = this.token;
    if (token != 0) {
      pumps.streams().remove(token);
    }
    wakeReader();
    Reference.reachabilityFence(this);
  }

  @Override
  public String toString() {
    return "session of respool";
  }

  /** Wakes the virtual thread that reads. */
  void wakeReader() {
    isReady = true;
    LockSupport.unpark(reader);
  }

  /** The result of a read or write that has ended the session. */
  private IOException ended() {
    byte[] outcome = isClosed ? null : outcome();
    if (outcome != null) {
      new Outcome(outcome).throwFailure();
    }
    return new SocketException("the connection was closed");
  }

  private final class Input extends InputStream {
    @Override
    public int read() throws IOException {
      byte[] one = new byte[1];
      return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
    }

    @Override
    public int read(byte[] buffer, int at, int length) throws IOException {
      if (length == 0) {
        return 0;
      }
      int count = VirtualThreads.isCurrent() ? readParked(buffer, at, length) : readHere(buffer, at, length);
      if (count > 0) {
        return count;
      }
      if (count == Native.TIMED_OUT) {
        throw new SocketTimeoutException("Read timed out");
      }
      throw ended();
    }

    private int readHere(byte[] buffer, int at, int length) {
      int limit = soTimeout == 0 ? -1 : soTimeout;
      try {
        return Native.read(stream.value, buffer, at, length, limit);
      } finally {
        Reference.reachabilityFence(StreamSocket.this);
      }
    }

    private int readParked(byte[] buffer, int at, int length) throws IOException {
      StreamPump pump = pumps.streams();
      if (token == 0) {
        token = pump.add(StreamSocket.this);
      }
      reader = Thread.currentThread();
      long deadline = System.nanoTime() + soTimeout * 1_000_000L;
      try {
        while (true) {
          isReady = false;
          int count = isClosed ? 0 : pump.read(stream.value, token, buffer, at, length);
          if (count != Native.TIMED_OUT) {
            return count;
          }
          if (!park(deadline)) {
            return Native.TIMED_OUT;
          }
        }
      } finally {
        reader = null;
        Reference.reachabilityFence(StreamSocket.this);
      }
    }

    /** Parks until there may be bytes. Returns false at the deadline. */
    private boolean park(long deadline) throws IOException {
      while (!isReady) {
        if (soTimeout == 0) {
          LockSupport.park(StreamSocket.this);
        } else {
          long left = deadline - System.nanoTime();
          if (left <= 0) {
            return false;
          }
          LockSupport.parkNanos(StreamSocket.this, left);
        }
        if (!isReady && Thread.currentThread().isInterrupted()) {
          // As the JDK does with a socket whose virtual thread is interrupted.
          StreamSocket.this.close();
          throw new SocketException("Closed by interrupt");
        }
      }
      return true;
    }

    @Override
    public int available() {
      try {
        return !isClosed && Native.isReadable(stream.value) ? 1 : 0;
      } finally {
        Reference.reachabilityFence(StreamSocket.this);
      }
    }

    @Override
    public void close() {
      StreamSocket.this.close();
    }
  }

  private final class Output extends OutputStream {
    @Override
    public void write(int value) throws IOException {
      write(new byte[] {(byte) value}, 0, 1);
    }

    @Override
    public void write(byte[] data, int at, int length) throws IOException {
      int code = VirtualThreads.isCurrent() ? writeParked(data, at, length) : writeHere(data, at, length);
      if (code == Native.FULL) {
        throw new IOException("over 512 MiB of replies wait to be read");
      }
      // To a session that has ended, the bytes are dropped, as by a system that does not know yet
      // that the other side is gone. The read of the reply tells the end, and marks the connection
      // as broken. After a failed write Jedis would not mark it, and would fail to close it.
      if (code < 0 && isClosed) {
        throw ended();
      }
    }

    private int writeHere(byte[] data, int at, int length) {
      try {
        return Native.write(stream.value, data, at, length);
      } finally {
        Reference.reachabilityFence(StreamSocket.this);
      }
    }

    private int writeParked(byte[] data, int at, int length) throws IOException {
      int written = Native.tryWrite(stream.value, data, at, length);
      Reference.reachabilityFence(StreamSocket.this);
      if (written < 0 || written == length) {
        return written;
      }
      Future<Integer> rest =
          WRITERS.submit(() -> writeHere(data, at + written, length - written));
      try {
        return rest.get();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        StreamSocket.this.close();
        throw new SocketException("Closed by interrupt");
      } catch (ExecutionException e) {
        throw new IOException(e.getCause());
      }
    }

    @Override
    public void close() {
      StreamSocket.this.close();
    }
  }
}
