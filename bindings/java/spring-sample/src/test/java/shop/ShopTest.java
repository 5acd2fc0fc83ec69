package shop;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.MethodOrderer;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestMethodOrder;
import org.junit.jupiter.api.Timeout;
import org.springframework.beans.factory.annotation.Autowired;
import org.springframework.boot.test.context.SpringBootTest;
import org.springframework.dao.DataAccessException;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.test.annotation.DirtiesContext;
import org.springframework.test.context.DynamicPropertyRegistry;
import org.springframework.test.context.DynamicPropertySource;

/** The shop before a real server, in database 3. */
@SpringBootTest
@DirtiesContext
@TestMethodOrder(MethodOrderer.OrderAnnotation.class)
@Timeout(60)
class ShopTest {
  private static final Server SERVER = new Server();

  @Autowired private StringRedisTemplate redis;
  @Autowired private Products products;
  @Autowired private Orders orders;
  @Autowired private News news;

  @DynamicPropertySource
  static void server(DynamicPropertyRegistry properties) {
    properties.add("spring.data.redis.url", () -> SERVER.url(3));
  }

  @BeforeEach
  void flush() {
    SERVER.ask("FLUSHALL");
  }

  /**
   * With plain Jedis, the threads have as many connections as its pool allows. This is the first
   * test, because transactions with WATCH and blocking commands leave idle connections behind.
   */
  @Test
  @Order(1)
  void threadsShareOneConnection() throws Exception {
    CountDownLatch end = new CountDownLatch(1);
    ExecutorService other = Executors.newSingleThreadExecutor();
    try {
      Future<Integer> most = other.submit(() -> mostConnections(end));
      List<Long> counts = together(50, 100, () -> redis.opsForValue().increment("n"));
      end.countDown();
      assertThat(counts).doesNotHaveDuplicates().hasSize(50 * 100).contains(50L * 100);
      // Beside that of commands: one for the subscription, and one that asks for the version.
      assertThat(most.get(10, TimeUnit.SECONDS)).isBetween(1, 3);
      assertThat(SERVER.ask("CLIENT LIST").lines().filter(line -> line.contains(" db=3 ")))
          .singleElement()
          .asString()
          .contains(" name=respool ");
    } finally {
      other.shutdownNow();
    }
  }

  /** The template, the cache and the server agree about the database of the URL. */
  @Test
  void commandsUseTheDatabaseOfTheUrl() {
    redis.opsForValue().set("a", "1");
    assertThat(redis.opsForValue().increment("a")).isEqualTo(2);
    redis.opsForHash().putAll("h", Map.of("x", "1", "y", "2"));
    assertThat(redis.opsForHash().entries("h")).isEqualTo(Map.of("x", "1", "y", "2"));
    redis.opsForZSet().add("z", "m", 1.5);
    assertThat(redis.opsForZSet().score("z", "m")).isEqualTo(1.5);
    assertThatThrownBy(() -> redis.opsForValue().increment("h"))
        .isInstanceOf(DataAccessException.class)
        .hasMessageContaining("WRONGTYPE");
    assertThat(SERVER.ask("INFO keyspace")).contains("db3:keys=3").doesNotContain("db0");
  }

  @Test
  void cacheAnswersTheSecondCall() {
    int before = products.made();
    assertThat(products.description("tea")).isEqualTo("the best tea");
    assertThat(products.description("tea")).isEqualTo("the best tea");
    assertThat(products.made() - before).isEqualTo(1);
    assertThat(redis.getExpire("descriptions::tea")).isBetween(500L, 600L);
    products.forget("tea");
    products.description("tea");
    assertThat(products.made() - before).isEqualTo(2);
  }

  @Test
  void listenerHearsEachMessageOnce() throws Exception {
    List<String> told = new ArrayList<>();
    for (int number = 0; number < 100; number++) {
      told.add("tea " + number);
      news.tell("tea " + number);
    }
    List<String> heard = new ArrayList<>();
    for (String next = news.next(); next != null; next = heard.size() < 100 ? news.next() : null) {
      heard.add(next);
    }
    // Spring runs each message in a thread of its own.
    assertThat(heard).containsExactlyInAnyOrderElementsOf(told);
  }

  @Test
  void pipelineAndScanSeeEachProduct() {
    Map<String, Integer> counts = new TreeMap<>();
    for (int number = 0; number < 500; number++) {
      counts.put("p" + number, number);
    }
    assertThat(products.stock(counts)).hasSize(500).containsOnly(true);
    assertThat(products.inStock()).containsExactlyInAnyOrderElementsOf(counts.keySet());
    assertThat(products.left("p499")).isEqualTo(499);
  }

  /** WATCH and MULTI of many threads sell no product twice. */
  @Test
  void transactionsSellWhatIsThere() throws Exception {
    products.stock(Map.of("tea", 25));
    List<Boolean> placed = together(10, 5, () -> orders.place("tea"));
    assertThat(placed.stream().filter(one -> one)).hasSize(25);
    assertThat(products.left("tea")).isZero();
    assertThat(redis.opsForList().size("orders")).isEqualTo(25);
  }

  @Test
  void blockingPopGetsTheOrderThatComesLater() throws Exception {
    products.stock(Map.of("tea", 1));
    assertThat(orders.next(Duration.ofSeconds(1))).isNull();
    ExecutorService other = Executors.newSingleThreadExecutor();
    try {
      Future<String> next = other.submit(() -> orders.next(Duration.ofSeconds(20)));
      SERVER.await(() -> SERVER.ask("INFO clients").contains("blocked_clients:1"));
      assertThat(orders.place("tea")).isTrue();
      assertThat(next.get(10, TimeUnit.SECONDS)).isEqualTo("tea");
    } finally {
      other.shutdownNow();
    }
  }

  /** The most connections at the same time beside that of the test, until the end. */
  private static int mostConnections(CountDownLatch end) throws Exception {
    int most = 0;
    do {
      most = Math.max(most, SERVER.ask("CLIENT LIST").split("id=").length - 2);
    } while (!end.await(2, TimeUnit.MILLISECONDS));
    return most;
  }

  /** Runs an action in threads at the same time, and in each some times. */
  private static <T> List<T> together(int threads, int times, Callable<T> action) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(threads);
    try {
      CountDownLatch start = new CountDownLatch(threads);
      List<Future<List<T>>> parts = new ArrayList<>();
      for (int thread = 0; thread < threads; thread++) {
        parts.add(
            pool.submit(
                () -> {
                  start.countDown();
                  start.await();
                  List<T> part = new ArrayList<>();
                  for (int time = 0; time < times; time++) {
                    part.add(action.call());
                  }
                  return part;
                }));
      }
      List<T> all = new ArrayList<>();
      for (Future<List<T>> part : parts) {
        all.addAll(part.get(30, TimeUnit.SECONDS));
      }
      return all;
    } finally {
      pool.shutdownNow();
    }
  }
}
