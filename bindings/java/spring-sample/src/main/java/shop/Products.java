package shop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.cache.annotation.CacheEvict;
import org.springframework.cache.annotation.Cacheable;
import org.springframework.data.redis.connection.DefaultStringRedisConnection;
import org.springframework.data.redis.connection.StringRedisConnection;
import org.springframework.data.redis.core.Cursor;
import org.springframework.data.redis.core.RedisCallback;
import org.springframework.data.redis.core.ScanOptions;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.stereotype.Service;

@Service
class Products {
  private final AtomicInteger made = new AtomicInteger();
  private final StringRedisTemplate redis;

  Products(StringRedisTemplate redis) {
    this.redis = redis;
  }

  @Cacheable("descriptions")
  public String description(String product) {
    made.incrementAndGet();
    return "the best " + product;
  }

  /** How often a description was made, and not taken from the cache. */
  public int made() {
    return made.get();
  }

  @CacheEvict("descriptions")
  public void forget(String product) {}

  /** Sets the stock of many products in one pipeline. */
  List<Object> stock(Map<String, Integer> counts) {
    return redis.executePipelined(
        (RedisCallback<Object>)
            connection -> {
              StringRedisConnection strings = new DefaultStringRedisConnection(connection);
              counts.forEach((product, count) -> strings.set("stock:" + product, "" + count));
              return null;
            });
  }

  int left(String product) {
    String left = redis.opsForValue().get("stock:" + product);
    return left == null ? 0 : Integer.parseInt(left);
  }

  List<String> inStock() {
    List<String> products = new ArrayList<>();
    ScanOptions options = ScanOptions.scanOptions().match("stock:*").count(10).build();
    try (Cursor<String> keys = redis.scan(options)) {
      keys.forEachRemaining(key -> products.add(key.substring("stock:".length())));
    }
    return products;
  }
}
