package io.respool;

/**
 * The threads that wake callers in Java: each is started when it is needed first. They are apart
 * from the client, so that a client which no program refers to ends them.
 */
final class Pumps {
  private final Native.Handle client;

  private CallPump virtualCalls;
  private CallPump asks;
  private StreamPump streams;
  private volatile boolean isClosed;

  Pumps(Native.Handle client) {
    this.client = client;
  }

  /** The pump of calls from virtual threads. */
  CallPump virtualCalls() {
    CallPump pump = virtualCalls;
    return pump != null ? pump : makeVirtualCalls();
  }

  private synchronized CallPump makeVirtualCalls() {
    if (virtualCalls == null) {
      virtualCalls = calls("respool-calls");
    }
    return virtualCalls;
  }

  /** The pump of futures. */
  synchronized CallPump asks() {
    if (asks == null) {
      asks = calls("respool-asks");
    }
    return asks;
  }

  private CallPump calls(String name) {
    return new CallPump(isClosed ? 0 : Native.openCompletions(client.value), name);
  }

  /** The pump of virtual threads that read streams. */
  synchronized StreamPump streams() {
    if (streams == null) {
      streams = new StreamPump();
      if (isClosed) {
        streams.close();
      }
    }
    return streams;
  }

  boolean isClosed() {
    return isClosed;
  }

  /** Later calls fail as not sent. Calls that are under way end as they would. */
  synchronized void close() {
    isClosed = true;
    for (CallPump pump : new CallPump[] {virtualCalls, asks}) {
      if (pump != null) {
        pump.close();
      }
    }
    if (streams != null) {
      streams.close();
    }
  }
}
