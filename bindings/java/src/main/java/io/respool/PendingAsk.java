package io.respool;

import java.util.concurrent.CompletableFuture;
import java.util.function.Function;

/** The future of a call. If it ends before the outcome has come, the request is taken back. */
final class PendingAsk<T> extends CompletableFuture<T> implements CallPump.Receiver {
  private final CallPump pump;
  private final Function<Outcome, T> decoder;
  private volatile long token;

  private PendingAsk(CallPump pump, Function<Outcome, T> decoder) {
    this.pump = pump;
    this.decoder = decoder;
  }

  static <T> PendingAsk<T> begin(CallPump pump, byte[] request, Function<Outcome, T> decoder) {
    PendingAsk<T> ask = new PendingAsk<>(pump, decoder);
    ask.token = pump.ask(request, ask);
    return ask;
  }

  @Override
  public void receive(Outcome outcome) {
    if (isDone()) {
      return;
    }
    try {
      super.complete(decoder.apply(outcome));
    } catch (Throwable e) {
      super.completeExceptionally(e);
    }
  }

  @Override
  public boolean cancel(boolean mayInterruptIfRunning) {
    return withdrawIf(super.cancel(mayInterruptIfRunning));
  }

  @Override
  public boolean complete(T value) {
    return withdrawIf(super.complete(value));
  }

  /** Such as by orTimeout. */
  @Override
  public boolean completeExceptionally(Throwable cause) {
    return withdrawIf(super.completeExceptionally(cause));
  }

  private boolean withdrawIf(boolean wasPending) {
    if (wasPending) {
      pump.withdraw(token);
    }
    return wasPending;
  }

  /** The futures of stages are plain ones: they are not calls. */
  @Override
  public <U> CompletableFuture<U> newIncompleteFuture() {
    return new CompletableFuture<>();
  }
}
