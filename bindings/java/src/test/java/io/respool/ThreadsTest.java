package io.respool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.Connection;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisConnectionException;

/** Many threads of both kinds. */
@Timeout(120)
class ThreadsTest {
  private static final Set<String> PUMPS =
      Set.of("respool-asks", "respool-calls", "respool-streams");

  private TestServer server;

  @BeforeEach
  void start() throws Exception {
    server = new TestServer();
  }

  @AfterEach
  void stop() throws Exception {
    server.close();
  }

  private static Thread platform(Runnable code) {
    Thread thread = new Thread(null, code, "caller", 256 << 10);
    thread.start();
    return thread;
  }

  /** Java 17 has no virtual threads: then the test does not run. */
  private static Thread virtual(Runnable code) {
    try {
      return (Thread) Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, code);
    } catch (NoSuchMethodException e) {
      assumeTrue(false, "virtual threads need Java 21");
      return null;
    } catch (ReflectiveOperationException e) {
      throw new AssertionError(e);
    }
  }

  private interface Starter {
    Thread start(Runnable code);
  }

  private void assertOwnReplies(Starter starter, int count, int rounds) throws Exception {
    ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();
    try (RedisClient jedis = Respool.jedis(server.url())) {
      List<Thread> threads = new ArrayList<>();
      for (int index = 0; index < count; index++) {
        String key = "counter-" + index;
        Runnable code =
            () -> {
              try {
                for (int round = 1; round <= rounds; round++) {
                  assertEquals(round, jedis.incr(key));
                  jedis.set(key + "-text", key + round);
                  assertEquals(key + round, jedis.get(key + "-text"));
                }
              } catch (Throwable e) {
                failures.add(e);
              }
            };
        threads.add(starter.start(code));
      }
      for (Thread thread : threads) {
        thread.join();
      }
      assertEquals(List.of(), new ArrayList<>(failures));
      var connected = Pattern.compile("connected_clients:(\\d+)").matcher(jedis.info("clients"));
      assertTrue(connected.find());
      assertTrue(Integer.parseInt(connected.group(1)) <= 10, connected.group());
    }
  }

  @Test
  void eachOf200ThreadsGetsItsOwnReplies() throws Exception {
    assertOwnReplies(ThreadsTest::platform, 200, 100);
  }

  @Test
  void eachOf2000VirtualThreadsGetsItsOwnReplies() throws Exception {
    assertOwnReplies(ThreadsTest::virtual, 2000, 20);
  }

  /** More callers than carriers wait at the server, and others go on. */
  @Test
  void waitingVirtualThreadsKeepNoCarrier() throws Exception {
    try (RedisClient jedis = Respool.jedis(server.url())) {
      List<CompletableFuture<Object>> waiting = new ArrayList<>();
      for (int index = 0; index < 50; index++) {
        CompletableFuture<Object> popped = new CompletableFuture<>();
        waiting.add(popped);
        virtual(() -> popped.complete(jedis.blpop(30, "list")));
      }
      while (!jedis.info("clients").contains("blocked_clients:50")) {
        Thread.sleep(5);
      }
      CompletableFuture<String> other = new CompletableFuture<>();
      virtual(() -> other.complete(jedis.set("k", "v")));
      assertEquals("OK", other.get(10, TimeUnit.SECONDS));
      for (int index = 0; index < 50; index++) {
        jedis.rpush("list", "x" + index);
      }
      for (CompletableFuture<Object> popped : waiting) {
        popped.get(10, TimeUnit.SECONDS);
      }
    }
  }

  @Test
  void virtualThreadsHavePipelinesAndSubscriptions() throws Exception {
    try (RedisClient jedis = Respool.jedis(server.url())) {
      List<CompletableFuture<String>> messages = new ArrayList<>();
      for (int index = 0; index < 30; index++) {
        CompletableFuture<String> message = new CompletableFuture<>();
        messages.add(message);
        JedisPubSub subscriber =
            new JedisPubSub() {
              @Override
              public void onMessage(String channel, String text) {
                message.complete(text);
                unsubscribe();
              }
            };
        virtual(() -> jedis.subscribe(subscriber, "channel"));
      }
      CompletableFuture<Long> sum = new CompletableFuture<>();
      virtual(
          () -> {
            String value = "v".repeat(20_000);
            try (var pipeline = jedis.pipelined()) {
              List<Response<Long>> replies = new ArrayList<>();
              for (int index = 0; index < 500; index++) {
                pipeline.set("k" + index, value);
                replies.add(pipeline.strlen("k" + index));
              }
              pipeline.sync();
              sum.complete(replies.stream().mapToLong(Response::get).sum());
            } catch (Throwable e) {
              sum.completeExceptionally(e);
            }
          });
      assertEquals(500 * 20_000L, sum.get(30, TimeUnit.SECONDS));
      while (messages.stream().anyMatch(message -> !message.isDone())) {
        jedis.publish("channel", "hello");
        Thread.sleep(20);
      }
      assertEquals("hello", messages.get(0).get());
    }
  }

  @Test
  void virtualThreadHasLimitsAndInterrupts() throws Exception {
    Respool.Options options =
        Respool.options().set("request-timeout-ms", "0").set("link-stall-ms", "60s");
    try (RedisClient limited = options.limit(Duration.ofMillis(100)).jedis(server.url());
        RedisClient jedis = Respool.options().set("request-timeout-ms", "0").set("link-stall-ms", "60s").jedis(server.url())) {
      limited.set("k", "1");
      jedis.set("k", "1");
      server.freeze();
      assertEquals(UnknownOutcomeException.class, failure(limited, null).getClass());
      assertEquals(UnknownOutcomeException.class, failure(jedis, Duration.ofMillis(100)).getClass());
      server.goOn();
    }
  }

  /** A thread that was interrupted before a call gets its reply, and is interrupted behind it. */
  @Test
  void interruptFromBeforeTheCallEndsNoCall() throws Exception {
    try (RedisClient jedis = Respool.jedis(server.url())) {
      for (Starter starter : new Starter[] {ThreadsTest::platform, ThreadsTest::virtual}) {
        CompletableFuture<Boolean> ended = new CompletableFuture<>();
        starter.start(
            () -> {
              try {
                Thread.currentThread().interrupt();
                for (int round = 0; round < 100; round++) {
                  jedis.incr("n");
                }
                ended.complete(Thread.interrupted());
              } catch (Throwable e) {
                ended.completeExceptionally(e);
              }
            });
        assertTrue(ended.get(10, TimeUnit.SECONDS));
      }
    }
  }

  /** An executor that is shut down interrupts its threads once, perhaps between two waits. */
  @Test
  void interruptFromBeforeEndsACommandThatBlocks() throws Exception {
    try (RedisClient jedis = Respool.jedis(server.url())) {
      for (Starter starter : new Starter[] {ThreadsTest::platform, ThreadsTest::virtual}) {
        CompletableFuture<Throwable> ended = new CompletableFuture<>();
        starter.start(
            () -> {
              try {
                Thread.currentThread().interrupt();
                jedis.blpop(0, "empty");
                ended.complete(null);
              } catch (Throwable e) {
                ended.complete(e);
              }
            });
        assertInstanceOf(JedisConnectionException.class, ended.get(10, TimeUnit.SECONDS));
      }
    }
  }

  /** A client that no program refers to ends its threads, though it was not closed. */
  @Test
  void forgottenClientEndsItsThreads() throws Exception {
    for (int round = 0; round < 5; round++) {
      assertEquals("+PONG\r\n", new String(Respool.open(server.url()).ask("PING").get()));
      CompletableFuture<Object> synced = new CompletableFuture<>();
      if (Runtime.version().feature() >= 21) {
        virtual(() -> synced.complete(pipelined()));
        assertEquals(List.of("PONG"), synced.get(10, TimeUnit.SECONDS));
      }
    }
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
    while (pumps() > 0 && System.nanoTime() < end) {
      System.gc();
      Thread.sleep(50);
    }
    assertEquals(0, pumps());
  }

  /** Callers that begin while the client closes get an outcome, and no thread stays behind. */
  @Test
  void closedClientLeavesNoThread() throws Exception {
    for (int round = 0; round < 30; round++) {
      Respool respool = Respool.open(server.url());
      List<Thread> threads = new ArrayList<>();
      for (int index = 0; index < 4; index++) {
        threads.add(
            platform(
                () -> {
                  CompletableFuture<byte[]> last;
                  do {
                    last = respool.ask("PING");
                    last.handle((reply, error) -> null).join();
                  } while (!last.isCompletedExceptionally());
                  for (int more = 0; more < 200; more++) {
                    respool.ask("PING");
                  }
                }));
      }
      Thread.sleep(5);
      respool.close();
      for (Thread thread : threads) {
        thread.join();
      }
    }
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
    while (pumps() > 0 && System.nanoTime() < end) {
      Thread.sleep(5);
    }
    assertEquals(0, pumps());
  }

  /** The replies of a pipeline of a client that is forgotten then. */
  private List<Object> pipelined() {
    Respool respool = Respool.open(server.url());
    try (Connection connection = respool.connections().getConnection();
        Pipeline pipeline = new Pipeline(connection)) {
      pipeline.sendCommand(Protocol.Command.PING, new String[0]);
      return pipeline.syncAndReturnAll().stream()
          .map(reply -> (Object) new String((byte[]) reply))
          .toList();
    }
  }

  private static long pumps() {
    return Thread.getAllStackTraces().keySet().stream()
        .filter(thread -> PUMPS.contains(thread.getName()))
        .count();
  }

  private static Throwable failure(RedisClient jedis, Duration interruptAfter) throws Exception {
    CompletableFuture<Throwable> ended = new CompletableFuture<>();
    Thread thread =
        virtual(
            () -> {
              try {
                jedis.incr("k");
                ended.complete(new AssertionError("there is a reply"));
              } catch (Throwable e) {
                boolean isTold = interruptAfter == null || Thread.currentThread().isInterrupted();
                ended.complete(isTold ? e : new AssertionError("the status is lost", e));
              }
            });
    if (interruptAfter != null) {
      Thread.sleep(interruptAfter.toMillis());
      assertNull(ended.getNow(null));
      thread.interrupt();
    }
    return ended.get(10, TimeUnit.SECONDS);
  }
}
