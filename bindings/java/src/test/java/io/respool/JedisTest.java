package io.respool;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.exceptions.JedisNoScriptException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.resps.Tuple;

/** The API of Jedis before a real server. */
@Timeout(60)
class JedisTest {
  private static TestServer server;
  private static RedisClient jedis;

  @BeforeAll
  static void open() throws Exception {
    server = new TestServer();
    jedis = Respool.jedis(server.url());
  }

  @AfterAll
  static void close() throws Exception {
    jedis.close();
    server.close();
  }

  @BeforeEach
  void flush() {
    jedis.flushAll();
  }

  @Test
  void commandsOfEachTypeHaveTheirReplies() {
    assertEquals("OK", jedis.set("k", "v\r\nä"));
    assertEquals("v\r\nä", jedis.get("k"));
    assertNull(jedis.get("absent"));
    assertEquals("", emptyValue());
    assertEquals(Long.MIN_VALUE, jedis.incrBy("least", Long.MIN_VALUE));
    assertEquals(2, jedis.hset("h", Map.of("a", "1", "b", "2")));
    assertEquals(Map.of("a", "1", "b", "2"), jedis.hgetAll("h"));
    assertEquals(Arrays.asList("v\r\nä", null), jedis.mget("k", "absent"));
    jedis.zadd("z", Map.of("m", 1.5, "n", 2.0));
    assertEquals(List.of(new Tuple("m", 1.5), new Tuple("n", 2.0)), jedis.zrangeWithScores("z", 0, -1));
    assertEquals(List.of("1", "2"), jedis.eval("return {'1', '2'}"));
    assertTrue(jedis.info().contains("redis_version"));
    assertArrayEquals(new byte[] {0, (byte) 255}, binaryValue());
  }

  private String emptyValue() {
    jedis.set("empty", "");
    return jedis.get("empty");
  }

  private byte[] binaryValue() {
    byte[] key = {1, 0, 2};
    jedis.set(key, new byte[] {0, (byte) 255});
    return jedis.get(key);
  }

  @Test
  void errorsOfTheServerAreThoseOfJedis() {
    jedis.set("text", "a");
    JedisDataException error = assertThrows(JedisDataException.class, () -> jedis.incr("text"));
    assertTrue(error.getMessage().startsWith("ERR value is not an integer"), error.getMessage());
    assertThrows(JedisNoScriptException.class, () -> jedis.evalsha("0".repeat(40)));
    // An error inside of an array is an item of it.
    assertThrows(JedisException.class, () -> jedis.sendCommand(Protocol.Command.SELECT, "1"));
    assertEquals("a", jedis.get("text"));
  }

  @Test
  void pipelineHasItsRepliesInOrder() {
    List<Response<Long>> responses = new ArrayList<>();
    try (var pipeline = jedis.pipelined()) {
      for (int index = 0; index < 10_000; index++) {
        responses.add(pipeline.incr("counter"));
      }
      pipeline.sync();
    }
    for (int index = 0; index < 10_000; index++) {
      assertEquals(index + 1, responses.get(index).get());
    }
  }

  /** A pipeline that is longer than all buffers is written before its replies are read. */
  @Test
  void pipelineOfLargeValuesEnds() {
    String value = "v".repeat(100_000);
    try (var pipeline = jedis.pipelined()) {
      List<Response<String>> replies = new ArrayList<>();
      for (int index = 0; index < 100; index++) {
        pipeline.set("large" + index, value);
        replies.add(pipeline.get("large" + index));
      }
      pipeline.sync();
      for (Response<String> reply : replies) {
        assertEquals(value, reply.get());
      }
    }
  }

  @Test
  void transactionIsAtomicAndWatches() {
    try (var transaction = jedis.multi()) {
      transaction.incr("t");
      transaction.get("t");
      assertEquals(List.of(1L, "1"), transaction.exec());
    }
    try (var transaction = jedis.transaction(false)) {
      transaction.watch("t");
      jedis.set("t", "changed");
      transaction.multi();
      transaction.incr("other");
      assertNull(transaction.exec());
    }
  }

  @Test
  void subscriberGetsMessagesUntilItLeaves() throws Exception {
    CompletableFuture<String> message = new CompletableFuture<>();
    CompletableFuture<Void> subscribed = new CompletableFuture<>();
    Thread thread =
        new Thread(
            () ->
                jedis.subscribe(
                    new JedisPubSub() {
                      @Override
                      public void onSubscribe(String channel, int count) {
                        subscribed.complete(null);
                      }

                      @Override
                      public void onMessage(String channel, String text) {
                        message.complete(channel + "=" + text);
                        unsubscribe();
                      }
                    },
                    "channel"));
    thread.start();
    subscribed.get(10, TimeUnit.SECONDS);
    assertEquals(1, jedis.publish("channel", "hello"));
    assertEquals("channel=hello", message.get(10, TimeUnit.SECONDS));
    thread.join(10_000);
    assertTrue(!thread.isAlive());
  }

  /** Jedis gives the connection of a listener that throws back to the pool. */
  @Test
  void failedListenerLeavesNoMessagesBehind() {
    JedisPubSub failing =
        new JedisPubSub() {
          @Override
          public void onSubscribe(String channel, int count) {
            throw new IllegalStateException("the listener fails");
          }
        };
    assertThrows(IllegalStateException.class, () -> jedis.subscribe(failing, "channel", "other"));
    for (int round = 0; round < 3; round++) {
      jedis.publish("channel", "message");
      try (var pipeline = jedis.pipelined()) {
        var reply = pipeline.incr("counter");
        pipeline.sync();
        assertEquals(round + 1, reply.get());
      }
    }
  }

  @Test
  void scanIteratorsSeeAllKeys() {
    Set<String> expected = new HashSet<>();
    for (int index = 0; index < 300; index++) {
      jedis.set("s:" + index, "x");
      expected.add("s:" + index);
    }
    Set<String> found = new HashSet<>();
    var iteration = jedis.scanIteration(50, "s:*");
    while (!iteration.isIterationCompleted()) {
      found.addAll(iteration.nextBatchList());
    }
    assertEquals(expected, found);
    String cursor = ScanParams.SCAN_POINTER_START;
    found.clear();
    do {
      var result = jedis.scan(cursor);
      found.addAll(result.getResult());
      cursor = result.getCursor();
    } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
    assertEquals(expected, found);
  }

  @Test
  void valueOf16MebibytesIsReadBack() {
    byte[] value = new byte[16 << 20];
    for (int index = 0; index < value.length; index++) {
      value[index] = (byte) (index % 253);
    }
    byte[] key = {'l'};
    jedis.set(key, value);
    assertArrayEquals(value, jedis.get(key));
  }

  @Test
  void blockingCommandWaitsAndHoldsUpNoOther() throws Exception {
    CompletableFuture<List<String>> popped = CompletableFuture.supplyAsync(() -> jedis.blpop(10, "list"));
    while (!jedis.info("clients").contains("blocked_clients:1")) {
      Thread.sleep(5);
    }
    jedis.rpush("list", "x");
    assertEquals(List.of("list", "x"), popped.get(10, TimeUnit.SECONDS));
  }

  /** Jedis casts the provider for this. */
  @Test
  void poolOfConnectionsCanBeAskedFor() {
    try (var pipeline = jedis.pipelined()) {
      pipeline.get("k");
      assertEquals(1, jedis.getPool().getNumActive());
    }
    assertEquals(0, jedis.getPool().getNumActive());
  }

  @Test
  void jedisPoolTakesItsSockets() {
    try (Respool respool = Respool.open(server.url());
        JedisPool pool =
            new JedisPool(
                new redis.clients.jedis.JedisPoolConfig(), respool.sockets(), respool.config());
        Jedis one = pool.getResource()) {
      assertEquals("OK", one.set("k", "v"));
      assertEquals("OK", one.select(1));
      assertNull(one.get("k"));
      one.select(0);
      assertEquals("v", one.get("k"));
    }
    try (Respool respool = Respool.open(server.url());
        Jedis one = new Jedis(respool.sockets(), DefaultJedisClientConfig.builder().resp3().build())) {
      assertEquals("PONG", one.ping());
    }
  }

  /** The commands of the builder's client would silently use another database. */
  @Test
  void otherDatabaseOfTheConfigurationIsRefused() {
    JedisClientConfig third = DefaultJedisClientConfig.builder().database(3).build();
    for (String path : new String[] {"", "/3"}) {
      try (Respool respool = Respool.open(server.url() + path)) {
        RedisClient.Builder builder = RedisClient.builder();
        builder.clientConfig(third);
        if (path.isEmpty()) {
          var error =
              assertThrows(IllegalArgumentException.class, () -> respool.customize(builder));
          assertTrue(error.getMessage().contains("the database 3"), error.getMessage());
        } else {
          respool.customize(builder);
        }
      }
    }
  }

  @Test
  void customizedClientRunsThroughIt() {
    try (Respool respool = Respool.open(server.url())) {
      RedisClient.Builder builder = RedisClient.builder();
      respool.customize(builder);
      try (RedisClient client = builder.build()) {
        client.set("k", "v");
      }
      // Closing a client leaves the one below open.
      assertArrayEquals("$1\r\nv\r\n".getBytes(), respool.ask("GET", "k").join());
    }
  }

  @Test
  void resp3HasTheSameReplies() {
    try (RedisClient client = Respool.options().resp3().jedis(server.url())) {
      client.hset("h", Map.of("a", "1"));
      client.zadd("z", Map.of("m", 1.5));
      assertEquals(Map.of("a", "1"), client.hgetAll("h"));
      assertEquals(1.5, client.zscore("z", "m"));
      assertEquals(List.of(new Tuple("m", 1.5)), client.zrangeWithScores("z", 0, -1));
      assertNull(client.get("absent"));
      assertEquals(Set.of("x"), sets(client));
      try (var pipeline = client.pipelined()) {
        var scores = pipeline.zrangeWithScores("z", 0, -1);
        pipeline.sync();
        assertEquals(List.of(new Tuple("m", 1.5)), scores.get());
      }
      assertThrows(JedisDataException.class, () -> client.incr("h"));
    }
  }

  private static Set<String> sets(RedisClient client) {
    client.sadd("set", "x");
    return client.smembers("set");
  }

  @Test
  void wrongUrlsAndOptionsAreNamed() {
    var error = assertThrows(IllegalArgumentException.class, () -> Respool.open("http://x"));
    assertTrue(error.getMessage().contains("backend"), error.getMessage());
    error =
        assertThrows(
            IllegalArgumentException.class,
            () -> Respool.options().set("request-timeout-ms", "soon").open(server.url()));
    assertTrue(error.getMessage().contains("request-timeout-ms"), error.getMessage());
  }

  @Test
  void closedClientFailsAsNotSent() {
    RedisClient client = Respool.jedis(server.url());
    client.set("k", "v");
    client.close();
    client.close();
    assertThrows(NotSentException.class, () -> client.get("k"));
    Respool respool = Respool.open(server.url());
    respool.close();
    var failed = respool.ask("GET", "k").handle((reply, error) -> error).join();
    assertEquals(NotSentException.class, failed.getClass());
  }
}
