package io.respool;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandObjects;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ClientKillParams;

/** The outcome of requests without a reply. */
@Timeout(60)
class OutcomeTest {
  private TestServer server;

  @BeforeEach
  void start() throws Exception {
    server = new TestServer();
  }

  @AfterEach
  void stop() throws Exception {
    server.close();
  }

  /** Requests wait for a server without an end. */
  private static Respool.Options patient() {
    return Respool.options()
        .set("outage-hold-ms", "60s")
        .set("request-timeout-ms", "0")
        .set("link-stall-ms", "60s");
  }

  @Test
  void limitTellsTheTruth() throws Exception {
    Respool.Options options = patient().limit(Duration.ofMillis(100));
    try (RedisClient jedis = options.jedis(server.url())) {
      assertEquals(1, jedis.incr("sent"));
      server.freeze();
      assertThrows(UnknownOutcomeException.class, () -> jedis.incr("sent"));
      server.goOn();
      server.kill();
      untilNotSent(jedis);
      server.start();
      assertFalse(untilReply(() -> jedis.exists("unsent")));
      // A command that blocks has no limit.
      assertEquals(null, jedis.blpop(1, "list"));
    }
  }

  /** Until the loss is noticed, a request may be written to the dead connection. */
  private static void untilNotSent(RedisClient jedis) {
    while (true) {
      try {
        jedis.incr("unsent");
      } catch (NotSentException e) {
        return;
      } catch (UnknownOutcomeException e) {
        assertFalse(Thread.interrupted(), "the limit of the test");
      }
    }
  }

  private static <T> T untilReply(java.util.function.Supplier<T> call) {
    while (true) {
      try {
        return call.get();
      } catch (JedisConnectionException e) {
        assertFalse(Thread.interrupted(), "the limit of the test");
      }
    }
  }

  @Test
  void killedServerIsAnErrorOfConnections() throws Exception {
    try (RedisClient jedis = Respool.options().set("outage-hold-ms", "0").jedis(server.url())) {
      jedis.set("k", "v");
      server.kill();
      untilNotSent(jedis);
      server.start();
      assertEquals(1, untilReply(() -> jedis.incr("counter")));
    }
  }

  @Test
  void interruptedCallEndsWithTheTruth() throws Exception {
    try (RedisClient jedis = patient().jedis(server.url())) {
      jedis.set("k", "v");
      // A call that has its reply at once ends with it, interrupted or not.
      Thread.currentThread().interrupt();
      assertEquals("v", jedis.get("k"));
      assertTrue(Thread.interrupted());
      server.freeze();
      CompletableFuture<Throwable> ended = new CompletableFuture<>();
      Thread thread =
          new Thread(
              () -> {
                try {
                  jedis.incr("k");
                  ended.complete(null);
                } catch (Throwable e) {
                  ended.complete(Thread.currentThread().isInterrupted() ? e : null);
                }
              });
      thread.start();
      Thread.sleep(100);
      assertFalse(ended.isDone());
      thread.interrupt();
      assertEquals(UnknownOutcomeException.class, ended.get(10, TimeUnit.SECONDS).getClass());
      server.goOn();
    }
  }

  /** A transaction has one outcome, and its exception tells it. */
  @Test
  void transactionTellsItsOutcome() throws Exception {
    try (RedisClient jedis =
        Respool.options().set("request-timeout-ms", "300ms").jedis(server.url())) {
      jedis.set("n", "0");
      AbstractTransaction transaction = jedis.multi();
      transaction.incr("n");
      server.freeze();
      assertThrows(UnknownOutcomeException.class, transaction::exec);
      server.goOn();
      // An error of the server stays one of Jedis.
      AbstractTransaction refused = jedis.multi();
      refused.sendCommand(Protocol.Command.INCR, "n", "too", "many");
      JedisDataException error = assertThrows(JedisDataException.class, refused::exec);
      assertTrue(error.getMessage().startsWith("EXECABORT"), error.getMessage());
    }
  }

  /** Closing waits for no call. Calls behind it fail as not sent, and the one under way ends. */
  @Test
  void closeWaitsForNoCall() throws Exception {
    RedisClient jedis = Respool.jedis(server.url());
    CompletableFuture<Throwable> ended = new CompletableFuture<>();
    Thread thread =
        new Thread(
            () -> {
              try {
                jedis.blpop(5, "nothing");
                ended.complete(null);
              } catch (Throwable e) {
                ended.complete(e);
              }
            });
    thread.start();
    Thread.sleep(200);
    jedis.close();
    assertFalse(ended.isDone());
    assertThrows(NotSentException.class, () -> jedis.get("k"));
    ended.get(20, TimeUnit.SECONDS);
  }

  @Test
  void futuresGetRepliesAndErrors() {
    try (Respool respool = Respool.open(server.url())) {
      assertEquals("+OK\r\n", new String(respool.ask("SET", "k", "v").join()));
      CommandObjects commands = new CommandObjects(RedisProtocol.RESP2);
      assertEquals("v", respool.ask(commands.get("k")).join());
      var error = assertThrows(CompletionException.class, () -> respool.ask("INCR", "k").join());
      assertEquals(JedisDataException.class, error.getCause().getClass());
      var refused = respool.ask("MULTI").handle((reply, failure) -> failure).join();
      assertTrue(refused.getMessage().contains("MULTI"), refused.toString());
      CompletableFuture<?>[] asks = new CompletableFuture<?>[10_000];
      for (int index = 0; index < asks.length; index++) {
        asks[index] = respool.ask("INCR", "counter");
      }
      CompletableFuture.allOf(asks).join();
      assertEquals(":10001\r\n", new String(respool.ask("INCR", "counter").join()));
    }
  }

  /** The request of a cancelled future that has not left is never executed. */
  @Test
  void cancelledFutureTakesItsRequestBack() throws Exception {
    Respool.Options options = patient().limit(Duration.ofMillis(50));
    try (Respool respool = options.open(server.url());
        RedisClient jedis = options.jedis(server.url())) {
      respool.ask("PING").join();
      server.kill();
      untilNotSent(jedis);
      Thread.sleep(200);
      CompletableFuture<byte[]> cancelled = respool.ask("INCR", "cancelled");
      CompletableFuture<byte[]> late = respool.ask("INCR", "late");
      late.orTimeout(20, TimeUnit.MILLISECONDS);
      CompletableFuture<byte[]> kept = respool.ask("INCR", "kept");
      assertTrue(cancelled.cancel(true));
      assertThrows(CancellationException.class, cancelled::join);
      assertThrows(CompletionException.class, late::join);
      server.start();
      assertEquals(":1\r\n", new String(kept.get(30, TimeUnit.SECONDS)));
      byte[] count = respool.ask("EXISTS", "cancelled", "late").get(30, TimeUnit.SECONDS);
      assertEquals(":0\r\n", new String(count));
    }
  }

  private static String clients(RedisClient jedis) {
    Object list = jedis.sendCommand(Protocol.Command.CLIENT, "LIST");
    return list instanceof byte[] bytes ? new String(bytes) : list.toString();
  }

  private static void endSession(RedisClient jedis, Object id) {
    Object killed = jedis.sendCommand(Protocol.Command.CLIENT, "KILL", "ID", "" + id);
    assertEquals(1L, killed);
    while (clients(jedis).contains("id=" + id + " ")) {
      Thread.onSpinWait();
    }
  }

  /** A pipeline whose session was closed fails. Jedis must not go on with another session. */
  @Test
  void endedSessionEndsItsPipelineOnly() {
    try (RedisClient jedis = Respool.jedis(server.url())) {
      Pipeline pipeline = jedis.pipelined();
      var id = pipeline.sendCommand(Protocol.Command.CLIENT, "ID");
      pipeline.sync();
      endSession(jedis, id.get());
      pipeline.set("k", "v");
      var error = assertThrows(UnknownOutcomeException.class, pipeline::sync);
      assertTrue(error.getMessage().contains("closed"), error.getMessage());
      // Its connection is broken for Jedis.
      assertThrows(JedisConnectionException.class, pipeline::close);
      assertFalse(jedis.exists("k"));
      // The next pipeline has another session, also if one of the pool has ended.
      Object idle = idOfPipeline(jedis);
      endSession(jedis, idle);
      assertNotEquals(idle, idOfPipeline(jedis));
    }
  }

  private static Object idOfPipeline(RedisClient jedis) {
    try (Pipeline pipeline = jedis.pipelined()) {
      var id = pipeline.sendCommand(Protocol.Command.CLIENT, "ID");
      pipeline.sync();
      return id.get();
    }
  }

  /** A pool of Jedis keeps no such connection, and closing it is no error. */
  @Test
  void killedSessionIsBrokenAndCloses() {
    try (Respool respool = Respool.open(server.url());
        Jedis other = new Jedis(respool.sockets(), respool.config())) {
      Jedis killed = new Jedis(respool.sockets(), respool.config());
      assertEquals("PONG", killed.ping());
      String id = "" + killed.clientId();
      assertEquals(1, other.clientKill(ClientKillParams.clientKillParams().id(id)));
      assertThrows(JedisConnectionException.class, killed::ping);
      assertTrue(killed.isBroken());
      assertThrows(JedisConnectionException.class, killed::ping);
      killed.close();
      assertEquals("PONG", other.ping());
    }
  }
}
