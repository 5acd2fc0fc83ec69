import glide.api.GlideClient;
import glide.api.models.configuration.GlideClientConfiguration;
import glide.api.models.configuration.NodeAddress;
import io.lettuce.core.api.sync.RedisCommands;
import io.respool.Respool;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.UnifiedJedis;

/**
 * The loop of a client library for Java. Arguments: PEER URL CALLERS VERB VALUE_BYTES SECONDS, or
 * PEER probe.
 */
public final class Load {
  private static final int KEYS = 100;

  /**
   * By then the virtual machine has compiled the loop and the library. With 200 callers, the CPU
   * for each request of Lettuce and GLIDE falls for four seconds, to half of that of the first one.
   */
  private static final double WARM_UP_SECONDS = 5;

  /**
   * The bound of the warm-up, in measured times. A run with {@code --quick} shows that a library works,
   * and not how fast it is.
   */
  private static final double WARM_UP_TIMES_MAX = 5;

  private Load() {}

  public static void main(String[] words) throws Exception {
    String peer = words[0];
    if (words[1].equals("probe")) {
      String problem = probe(peer);
      if (problem != null) {
        System.err.println(problem);
      }
      System.exit(problem == null ? 0 : 1);
    }
    int count = Integer.parseInt(words[2]);
    String verb = words[3];
    String value = "v".repeat(Integer.parseInt(words[4]));
    double seconds = Double.parseDouble(words[5]);
    Client client = open(peer, words[1]);
    Caller[] callers = new Caller[count];
    for (int caller = 0; caller < count; caller++) {
      Keys keys = Keys.of(caller, value);
      if (verb.equals("large")) {
        client.set(keys);
      } else {
        client.mset(keys);
      }
      callers[caller] = new Caller(client, verb, keys);
    }
    run(callers, peer.endsWith("-virtual"), seconds);
    System.exit(0);
  }

  /** Why a library cannot run here, or null if it can. */
  private static String probe(String peer) {
    if (peer.endsWith("-virtual") && Runtime.version().feature() < 21) {
      return "Java " + Runtime.version().feature() + " has no virtual threads";
    }
    try {
      switch (peer) {
        case "lettuce-threads" -> Class.forName("io.lettuce.core.RedisClient");
        case "glide-threads" -> Class.forName("glide.api.GlideClient");
        case "jedis-threads", "jedis-200-threads" -> Class.forName("redis.clients.jedis.RedisClient");
        default -> RespoolProbe.run();
      }
      return null;
    } catch (ClassNotFoundException | LinkageError e) {
      return "its class is missing: " + e.getMessage();
    } catch (UnsupportedOperationException e) {
      return e.getMessage();
    }
  }

  private static Client open(String peer, String url) throws Exception {
    return switch (peer) {
      case "jedis-threads" -> new JedisClient(JedisClient.pooled(url, 50));
      case "jedis-200-threads" -> new JedisClient(JedisClient.pooled(url, 200));
      case "respool-threads", "respool-virtual" -> new JedisClient(Respool.jedis(url));
      case "lettuce-threads" -> new LettuceClient(url);
      case "glide-threads" -> new ValkeyGlide(url);
      default -> throw new IllegalArgumentException(peer + " is no library for Java");
    };
  }

  /** Runs all callers, and says their result. Their threads live until the lab has read the CPU. */
  private static void run(Caller[] callers, boolean isVirtual, double seconds) throws Exception {
    double warmUp = Math.min(WARM_UP_SECONDS, WARM_UP_TIMES_MAX * seconds);
    Phases phases = new Phases(callers.length, nanosAfter(System.nanoTime(), warmUp));
    for (Caller caller : callers) {
      start(isVirtual, () -> caller.run(phases));
    }
    var input = new BufferedReader(new InputStreamReader(System.in));
    phases.warm.await();
    say("ready");
    hear(input);
    long began = System.nanoTime();
    phases.until = nanosAfter(began, seconds);
    phases.go.countDown();
    phases.done.await();
    double took = (System.nanoTime() - began) / 1e9;

    int[] times = Stream.of(callers).flatMapToInt(Caller::times).sorted().toArray();
    long errors = Stream.of(callers).mapToLong(caller -> caller.errors).sum();
    say(
        String.format(
            Locale.ROOT,
            "{\"requests\":%d,\"errors\":%d,\"seconds\":%f,\"p50_us\":%f,\"p99_us\":%f}",
            times.length,
            errors,
            took,
            at(times, 0.5),
            at(times, 0.99)));
    hear(input);
  }

  private static long nanosAfter(long from, double seconds) {
    return from + (long) (seconds * 1e9);
  }

  private static double at(int[] sorted, double part) {
    int index = Math.min(sorted.length - 1, (int) (sorted.length * part));
    return index < 0 ? 0 : sorted[index] / 1e3;
  }

  /** This class is compiled for Java 17, which has no virtual threads. */
  private static void start(boolean isVirtual, Runnable loop) throws ReflectiveOperationException {
    if (isVirtual) {
      Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, loop);
    } else {
      Thread thread = new Thread(loop);
      thread.setDaemon(true);
      thread.start();
    }
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  private static void hear(BufferedReader input) throws IOException {
    input.readLine();
  }

  /** All callers warm up, wait, and begin at the same time. */
  private static final class Phases {
    final long warmUntil;
    final CountDownLatch warm;
    final CountDownLatch go = new CountDownLatch(1);
    final CountDownLatch done;
    final CountDownLatch end = new CountDownLatch(1);

    /** The end of the measured time. It is set before {@link #go}. */
    volatile long until;

    Phases(int callers, long warmUntil) {
      this.warmUntil = warmUntil;
      this.warm = new CountDownLatch(callers);
      this.done = new CountDownLatch(callers);
    }
  }

  /** A thread's requests. */
  private static final class Caller {
    private static final AtomicBoolean HAS_SHOWN_ERROR = new AtomicBoolean();

    private final Request request;

    /** The time of each answered request, nanoseconds. */
    private int[] times = new int[1 << 12];

    private int count;
    long errors;

    Caller(Client client, String verb, Keys keys) {
      this.request =
          switch (verb) {
            case "get", "large" -> () -> client.get(keys);
            case "set" -> () -> client.set(keys);
            case "mget" -> () -> client.mget(keys);
            case "mset" -> () -> client.mset(keys);
            default -> throw new IllegalArgumentException(verb);
          };
    }

    void run(Phases phases) {
      try {
        ask(phases.warmUntil);
        phases.warm.countDown();
        phases.go.await();
        count = 0;
        errors = 0;
        ask(phases.until);
        phases.done.countDown();
        phases.end.await();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }

    private void ask(long until) {
      for (long began = System.nanoTime(); began < until; ) {
        boolean hasReply = isAnswered();
        long now = System.nanoTime();
        if (hasReply) {
          add(now - began);
        } else {
          errors++;
        }
        began = now;
      }
    }

    private boolean isAnswered() {
      try {
        request.send();
        return true;
      } catch (Exception e) {
        if (HAS_SHOWN_ERROR.compareAndSet(false, true)) {
          e.printStackTrace();
        }
        return false;
      }
    }

    private void add(long nanos) {
      if (count == times.length) {
        times = Arrays.copyOf(times, count * 2);
      }
      times[count++] = (int) Math.min(nanos, Integer.MAX_VALUE);
    }

    IntStream times() {
      return Arrays.stream(times, 0, count);
    }
  }

  private interface Request {
    void send() throws Exception;
  }

  /** The keys of a caller, in the forms that the libraries take. */
  private record Keys(
      String first, String value, String[] all, String[] pairs, Map<String, String> map) {
    static Keys of(int caller, String value) {
      String[] all = new String[KEYS];
      String[] pairs = new String[2 * KEYS];
      Map<String, String> map = new LinkedHashMap<>();
      for (int index = 0; index < KEYS; index++) {
        String key = "key:" + caller + ":" + index;
        all[index] = key;
        pairs[2 * index] = key;
        pairs[2 * index + 1] = value;
        map.put(key, value);
      }
      return new Keys(all[0], value, all, pairs, map);
    }
  }

  /** A client of all callers. A class of each library is loaded only if the library runs. */
  private interface Client {
    void get(Keys keys) throws Exception;

    void set(Keys keys) throws Exception;

    void mget(Keys keys) throws Exception;

    void mset(Keys keys) throws Exception;
  }

  private record JedisClient(UnifiedJedis jedis) implements Client {
    static RedisClient pooled(String url, int connections) {
      var pool = new ConnectionPoolConfig();
      pool.setMaxTotal(connections);
      pool.setMaxIdle(connections);
      URI at = URI.create(url);
      var address = new HostAndPort(at.getHost(), at.getPort());
      return RedisClient.builder().hostAndPort(address).poolConfig(pool).build();
    }

    @Override
    public void get(Keys keys) {
      jedis.get(keys.first);
    }

    @Override
    public void set(Keys keys) {
      jedis.set(keys.first, keys.value);
    }

    @Override
    public void mget(Keys keys) {
      jedis.mget(keys.all);
    }

    @Override
    public void mset(Keys keys) {
      jedis.mset(keys.pairs);
    }
  }

  /** Without the native library, {@code Respool.jedis} would be a plain client of Jedis. */
  private static final class RespoolProbe {
    static void run() {
      // Opening waits for no connection.
      Respool.open("redis://127.0.0.1:1").close();
    }
  }

  private static final class LettuceClient implements Client {
    private final RedisCommands<String, String> commands;

    LettuceClient(String url) {
      commands = io.lettuce.core.RedisClient.create(url).connect().sync();
    }

    @Override
    public void get(Keys keys) {
      commands.get(keys.first);
    }

    @Override
    public void set(Keys keys) {
      commands.set(keys.first, keys.value);
    }

    @Override
    public void mget(Keys keys) {
      commands.mget(keys.all);
    }

    @Override
    public void mset(Keys keys) {
      commands.mset(keys.map);
    }
  }

  private static final class ValkeyGlide implements Client {
    private static final int CALLERS_MAX = 10_000;

    private final GlideClient client;

    ValkeyGlide(String url) throws ExecutionException, InterruptedException {
      URI at = URI.create(url);
      var address = NodeAddress.builder().host(at.getHost()).port(at.getPort()).build();
      var config =
          GlideClientConfiguration.builder()
              .address(address)
              .requestTimeout(30_000)
              .inflightRequestsLimit(CALLERS_MAX)
              .build();
      client = GlideClient.createClient(config).get();
    }

    @Override
    public void get(Keys keys) throws Exception {
      client.get(keys.first).get();
    }

    @Override
    public void set(Keys keys) throws Exception {
      client.set(keys.first, keys.value).get();
    }

    @Override
    public void mget(Keys keys) throws Exception {
      client.mget(keys.all).get();
    }

    @Override
    public void mset(Keys keys) throws Exception {
      client.mset(keys.map).get();
    }
  }
}
