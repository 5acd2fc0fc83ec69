package io.respool;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;

/** Tells virtual threads from others. Java has had them since 21. */
final class VirtualThreads {
  private static final MethodHandle IS_VIRTUAL = find();

  private VirtualThreads() {}

  private static MethodHandle find() {
    try {
      MethodType type = MethodType.methodType(boolean.class);
      return MethodHandles.publicLookup().findVirtual(Thread.class, "isVirtual", type);
    } catch (ReflectiveOperationException e) {
      return null;
    }
  }

  static boolean isCurrent() {
    if (IS_VIRTUAL == null) {
      return false;
    }
    try {
      return (boolean) IS_VIRTUAL.invokeExact(Thread.currentThread());
    } catch (Throwable e) {
      throw new AssertionError("isVirtual throws nothing", e);
    }
  }
}
