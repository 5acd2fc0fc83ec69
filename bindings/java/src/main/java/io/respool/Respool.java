package io.respool;

import java.lang.ref.Reference;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import redis.clients.jedis.CommandObject;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisSocketFactory;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.builders.AbstractClientBuilder;
import redis.clients.jedis.executors.CommandExecutor;
import redis.clients.jedis.providers.PooledConnectionProvider;

/**
 * A client whose callers share few connections. Threads ask at the same time, their requests leave
 * in large batches, and each gets its own reply.
 *
 * <pre>{@code
 * RedisClient jedis = Respool.jedis("redis://127.0.0.1:6379");
 * }</pre>
 *
 * <p>A request without a reply is a {@link NotSentException} or an {@link UnknownOutcomeException}.
 * Errors of the server are the exceptions of Jedis.
 *
 * <p>A call that begins after another call has ended is executed after it.
 */
public final class Respool implements AutoCloseable {
  private static final System.Logger LOGGER = System.getLogger("io.respool");
  private static final AtomicBoolean HAS_WARNED = new AtomicBoolean();

  private final Native.Handle client;
  private final String name;
  private final int limitMs;
  private final boolean resp3;
  private final int database;
  private final Pumps pumps;

  /** Made when they are used first. */
  private PooledConnectionProvider connections;

  private Respool(long client, String name, Options options, int database) {
    this.client = Native.handle(client, Native::free);
    this.name = name;
    this.limitMs = options.limitMs;
    this.resp3 = options.resp3;
    this.database = database;
    Pumps pumps = new Pumps(this.client);
    this.pumps = pumps;
    Native.whenUnreachable(this, pumps::close);
  }

  /**
   * Opens a client of the servers that a URL names. Calls may begin before its connections are up.
   *
   * @param url as the option {@code backend} of respool: {@code redis://HOST:PORT}, {@code
   *     redis-cluster://HOST:PORT,HOST:PORT}, {@code redis-sentinel://HOST:PORT/NAME}
   * @throws IllegalArgumentException the URL is wrong
   * @throws UnsupportedOperationException there is no native library for this system
   */
  public static Respool open(String url) {
    return options().open(url);
  }

  /** Options of a client. */
  public static Options options() {
    return new Options();
  }

  /**
   * A client of Jedis whose commands run through a client of respool. Closing it closes both. Where
   * there is no native library, it is a plain client of Jedis, which the log says once.
   *
   * @param url see {@link #open}
   * @throws IllegalArgumentException the URL is wrong
   */
  public static RedisClient jedis(String url) {
    return options().jedis(url);
  }

  /** Whether there is a native library for this system. */
  public static boolean isSupported() {
    return NativeLibrary.problem() == null;
  }

  /** Options of a client: see {@link Respool#options}. */
  public static final class Options {
    private final List<byte[]> texts = new ArrayList<>();
    private int limitMs;
    private boolean resp3;

    private Options() {}

    /**
     * Sets an option of respool, such as {@code request-timeout-ms}. The value is written as in
     * {@code respool serve --NAME VALUE}.
     */
    public Options set(String name, String value) {
      texts.add(name.getBytes(StandardCharsets.UTF_8));
      texts.add(value.getBytes(StandardCharsets.UTF_8));
      return this;
    }

    /**
     * Limits the time of each call, except of commands that block. At the limit the request is
     * taken back if it has not left.
     */
    public Options limit(Duration limit) {
      long ms = limit.toMillis();
      if (ms < 1 || ms > Integer.MAX_VALUE) {
        throw new IllegalArgumentException("a limit is from 1 ms to 24 days, and not " + limit);
      }
      limitMs = (int) ms;
      return this;
    }

    /** Has replies in RESP3. The server must have it. */
    public Options resp3() {
      resp3 = true;
      return this;
    }

    /** See {@link Respool#open}. */
    public Respool open(String url) {
      String problem = NativeLibrary.problem();
      if (problem != null) {
        throw new UnsupportedOperationException("respool cannot run here: " + problem);
      }
      List<byte[]> all = new ArrayList<>(texts);
      if (resp3) {
        all.add("resp3".getBytes(StandardCharsets.UTF_8));
        all.add("yes".getBytes(StandardCharsets.UTF_8));
      }
      byte[][] error = new byte[1][];
      byte[] address = url.getBytes(StandardCharsets.UTF_8);
      long client = Native.open(address, all.toArray(new byte[0][]), error);
      if (client == 0) {
        throw new IllegalArgumentException(new String(error[0], StandardCharsets.UTF_8));
      }
      // Not the URL: it may have a password.
      return new Respool(client, "respool", this, database(url));
    }

    /** See {@link Respool#jedis}. */
    public RedisClient jedis(String url) {
      String problem = NativeLibrary.problem();
      if (problem == null) {
        return NewJedis.client(open(url));
      }
      if (!HAS_WARNED.getAndSet(true)) {
        String dropped = texts.isEmpty() ? "" : "; without effect: " + String.join(", ", names());
        LOGGER.log(System.Logger.Level.WARNING, "respool is plain Jedis here: {0}", problem + dropped);
      }
      return NewJedis.plainClient(url, limitMs, resp3);
    }

    private List<String> names() {
      List<String> names = new ArrayList<>();
      for (int index = 0; index < texts.size(); index += 2) {
        names.add(new String(texts.get(index), StandardCharsets.UTF_8));
      }
      return names;
    }

    /** The database that a URL names behind its hosts, or 0. */
    private static int database(String url) {
      String path = url.replaceAll("[?#].*", "");
      Matcher unix = Pattern.compile("[?&]db=([0-9]{1,9})").matcher(url);
      Matcher last = Pattern.compile("/([0-9]{1,9})/?$").matcher(path);
      Matcher found = url.startsWith("unix") ? unix : last;
      return found.find() ? Integer.parseInt(found.group(1)) : 0;
    }
  }

  /**
   * Runs commands of Jedis, for {@code new UnifiedJedis(executor)} of Jedis 4 to 7 and for the
   * builders of later ones. Closing it leaves this client open.
   */
  public CommandExecutor executor() {
    return new RespoolExecutor(this, false);
  }

  /**
   * Connections of Jedis to sessions of this client: for pipelines, transactions, subscriptions and
   * iterators. They are closed with this client.
   */
  public synchronized PooledConnectionProvider connections() {
    if (connections == null) {
      connections = Connections.provider(sockets(), config());
    }
    return connections;
  }

  /**
   * Sockets that are sessions of this client, for {@code JedisPool} and {@code Jedis}. Give them
   * {@link #config} too.
   */
  public JedisSocketFactory sockets() {
    return () -> {
      try {
        return new StreamSocket(pumps, pumps.isClosed() ? 0 : Native.openStream(client.value));
      } finally {
        Reference.reachabilityFence(this);
      }
    };
  }

  /** The configuration of Jedis that fits this client: its protocol, and no limits of Jedis' own. */
  public JedisClientConfig config() {
    return Connections.config(resp3);
  }

  /**
   * Has a client of Jedis run through this one. For Spring Data Redis: {@code
   * JedisClientConfiguration.builder().customizeClient(respool::customize)}.
   *
   * @throws IllegalArgumentException the configuration of the builder has another database than the
   *     URL of this client
   */
  public void customize(AbstractClientBuilder<?, ?> builder) {
    NewJedis.set(builder, this, executor());
  }

  /**
   * Sends a request without waiting for its reply. The future gets the reply in the protocol of
   * Redis, or one of the exceptions of calls. If it is cancelled or otherwise ended before, the
   * request is taken back if it has not left. Dependent actions run on the thread that wakes all
   * others, so they must not block.
   */
  public CompletableFuture<byte[]> ask(String... arguments) {
    return begin(Request.of(arguments), Outcome::reply);
  }

  /** As {@link #ask(String...)}. */
  public CompletableFuture<byte[]> ask(byte[]... arguments) {
    return begin(Request.of(arguments), Outcome::reply);
  }

  /**
   * As {@link #ask(String...)}, for a command of Jedis: {@code ask(commandObjects.get("key"))}. The
   * objects must have the protocol of this client, which is RESP2 unless it was opened with RESP3.
   */
  public <T> CompletableFuture<T> ask(CommandObject<T> command) {
    byte[] request = Request.of(command.getArguments());
    return begin(request, outcome -> command.getBuilder().build(outcome.decode()));
  }

  private <T> CompletableFuture<T> begin(byte[] request, Function<Outcome, T> decoder) {
    try {
      return PendingAsk.begin(pumps.asks(), request, decoder);
    } finally {
      // Otherwise the client may be unreachable, and closed, before the call has begun.
      Reference.reachabilityFence(this);
    }
  }

  /**
   * Sends a request and waits for its outcome. An interrupt ends the wait. One from before the call
   * ends only a command that blocks: a thread that cleans up before it ends gets its replies.
   */
  Outcome send(byte[] request, boolean mayBlock) {
    int limit = mayBlock ? 0 : limitMs;
    boolean wasInterrupted = !mayBlock && Thread.interrupted();
    try {
      if (VirtualThreads.isCurrent()) {
        return pumps.virtualCalls().call(request, limit);
      }
      return new Outcome(Native.call(client.value, request, limit));
    } finally {
      Reference.reachabilityFence(this);
      if (wasInterrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  int database() {
    return database;
  }

  /**
   * Closes the client. Calls that begin later fail as not sent. Calls that are under way end as they
   * would. It takes up to a second while requests wait for their servers.
   */
  @Override
  public synchronized void close() {
    if (pumps.isClosed()) {
      return;
    }
    pumps.close();
    if (connections != null) {
      connections.close();
    }
    Native.close(client.value);
    Reference.reachabilityFence(this);
  }

  @Override
  public String toString() {
    return name;
  }
}
