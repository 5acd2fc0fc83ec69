package io.respool;

import java.lang.ref.Reference;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * Calls that wait in Java. A thread takes their outcomes in batches from the native library. So a
 * virtual thread that waits keeps no thread of the system.
 */
final class CallPump {
  /** Gets the outcome of a call, on the thread of the pump. It must not block. */
  interface Receiver {
    void receive(Outcome outcome);
  }

  /** The most outcomes of a batch. */
  private static final int BATCH_MAX = 512;
  /** The token of the call that ends the pump. Its outcome is of no interest. */
  private static final long END = 0;

  private static final byte[] PING = Request.of("PING");
  /** The outcome of a call whose reply has no room in the heap. It is there before it is needed. */
  private static final Outcome NO_ROOM =
      new Outcome(
          "Uthe heap of Java has no room for the reply".getBytes(StandardCharsets.UTF_8));

  private final Native.Handle completions;
  private final Map<Long, Receiver> receivers = new ConcurrentHashMap<>();
  private final AtomicLong lastToken = new AtomicLong(END);
  private volatile boolean isClosed;

  /** `completions`: zero if the client was closed. */
  CallPump(long completions, String name) {
    this.completions = Native.handle(completions, Native::freeCompletions);
    this.isClosed = completions == 0;
    if (!isClosed) {
      // The thread that uses the client first leaves it none of its thread locals.
      Thread thread = new Thread(null, this::run, name, 0, false);
      thread.setDaemon(true);
      thread.start();
    }
  }

  /** Begins a call. Returns its token. The receiver gets its outcome, also if it cannot begin. */
  long ask(byte[] request, Receiver receiver) {
    long token = lastToken.incrementAndGet();
    receivers.put(token, receiver);
    // The pump does not end while there are receivers, so the order of these two matters.
    byte[] failure = isClosed ? Outcome.closed().bytes : begin(request, token);
    if (failure != null && receivers.remove(token) != null) {
      receiver.receive(new Outcome(failure));
      if (isClosed) {
        // The pump may have seen the receiver, and waits for it.
        wake();
      }
    }
    return token;
  }

  private byte[] begin(byte[] request, long token) {
    try {
      return Native.ask(completions.value, request, token);
    } finally {
      Reference.reachabilityFence(this);
    }
  }

  /** Takes the request back if it has not left. The receiver learns its fate. */
  void withdraw(long token) {
    Native.withdraw(completions.value, token);
    Reference.reachabilityFence(this);
  }

  /** Parks until the outcome is there. An interrupt or the limit takes the request back. */
  Outcome call(byte[] request, int limitMs) {
    Parked parked = new Parked(Thread.currentThread());
    long deadline = System.nanoTime() + limitMs * 1_000_000L;
    boolean isLimited = limitMs > 0;
    boolean isInterrupted = false;
    long token = ask(request, parked);
    while (parked.outcome == null) {
      if (isLimited) {
        LockSupport.parkNanos(this, deadline - System.nanoTime());
      } else {
        LockSupport.park(this);
      }
      if (parked.outcome != null) {
        break;
      }
      boolean interruptedNow = Thread.interrupted();
      boolean isLate = isLimited && deadline - System.nanoTime() <= 0;
      if (interruptedNow || isLate) {
        isInterrupted |= interruptedNow;
        isLimited = false;
        withdraw(token);
      }
    }
    if (isInterrupted) {
      Thread.currentThread().interrupt();
    }
    return parked.outcome;
  }

  private static final class Parked implements Receiver {
    private final Thread thread;
    private volatile Outcome outcome;

    Parked(Thread thread) {
      this.thread = thread;
    }

    @Override
    public void receive(Outcome outcome) {
      this.outcome = outcome;
      LockSupport.unpark(thread);
    }
  }

  /** Calls fail from now on. Those that are under way end as they would. */
  void close() {
    if (isClosed) {
      return;
    }
    isClosed = true;
    wake();
  }

  /** Has the pump look whether it may end. If such a call is under way, its outcome does that. */
  private void wake() {
    if (begin(PING, END) == null) {
      withdraw(END);
    }
  }

  private void run() {
    long[] tokens = new long[BATCH_MAX];
    int[] ends = new int[BATCH_MAX + 1];
    while (!isClosed || !receivers.isEmpty()) {
      ends[BATCH_MAX] = 0;
      byte[] batch = Native.take(completions.value, tokens, ends);
      if (batch == null && ends[BATCH_MAX] == 0) {
        break;
      }
      int from = 0;
      for (int index = 0; index < ends[BATCH_MAX]; index++) {
        Receiver receiver = remove(tokens[index]);
        if (receiver != null) {
          give(receiver, outcome(batch, from, ends[index]));
        }
        from = ends[index];
      }
    }
    Native.closeCompletions(completions.value);
    Reference.reachabilityFence(this);
  }

  /** Removes a receiver. Without room in the heap for its key it tries until there is some. */
  private Receiver remove(long token) {
    while (true) {
      try {
        return receivers.remove(token);
      } catch (OutOfMemoryError e) {
        Thread.yield();
      }
    }
  }

  /** An outcome of a batch, which is null if the heap had no room for it. */
  private static Outcome outcome(byte[] batch, int from, int to) {
    try {
      return batch == null ? NO_ROOM : new Outcome(batch, from, to);
    } catch (OutOfMemoryError e) {
      return NO_ROOM;
    }
  }

  private static void give(Receiver receiver, Outcome outcome) {
    try {
      receiver.receive(outcome);
    } catch (Throwable e) {
      // The other calls of the batch must get theirs, also if the handler throws.
      try {
        Thread thread = Thread.currentThread();
        thread.getUncaughtExceptionHandler().uncaughtException(thread, e);
      } catch (Throwable ignored) {
        // There is no other handler to tell.
      }
    }
  }
}
