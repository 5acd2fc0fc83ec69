package io.respool;

import java.lang.ref.Cleaner;
import java.util.function.LongConsumer;

/**
 * The native library: see crates/ffi/src/jni.rs. A long named after an object is its handle. Times
 * are in milliseconds.
 */
final class Native {
  /** A read or a write has found nothing within its time. */
  static final int TIMED_OUT = -1;
  /** Too many replies wait to be read. */
  static final int FULL = -3;

  private static final Cleaner CLEANER = Cleaner.create();

  private Native() {}

  /** A handle of the library. It is freed once this object is unreachable: keep it reachable. */
  static final class Handle {
    final long value;

    private Handle(long value) {
      this.value = value;
    }
  }

  /** Runs an action when an object is not reachable any more. The action must not refer to it. */
  static void whenUnreachable(Object object, Runnable action) {
    CLEANER.register(object, action);
  }

  static Handle handle(long value, LongConsumer free) {
    Handle handle = new Handle(value);
    CLEANER.register(handle, () -> free.accept(value));
    return handle;
  }

  /** The library calls this while a thread waits for its reply. */
  static boolean isInterrupted() {
    return Thread.currentThread().isInterrupted();
  }

  static native long open(byte[] url, byte[][] namesAndValues, byte[][] error);

  static native byte[] call(long client, byte[] request, int limit);

  static native void close(long client);

  static native void free(long client);

  static native long openCompletions(long client);

  static native byte[] ask(long completions, byte[] request, long token);

  static native void withdraw(long completions, long token);

  static native byte[] take(long completions, long[] tokens, int[] ends);

  static native void closeCompletions(long completions);

  static native void freeCompletions(long completions);

  static native long openStream(long client);

  static native int write(long stream, byte[] data, int at, int length);

  static native int tryWrite(long stream, byte[] data, int at, int length);

  static native int read(long stream, byte[] buffer, int at, int length, int limit);

  static native int readReady(
      long stream, long ready, long token, byte[] buffer, int at, int length);

  static native boolean isReadable(long stream);

  static native byte[] outcome(long stream);

  static native void closeStream(long stream);

  static native void freeStream(long stream);

  static native long openReady();

  static native int takeReady(long ready, long[] tokens);

  static native void closeReady(long ready);

  static native void freeReady(long ready);
}
