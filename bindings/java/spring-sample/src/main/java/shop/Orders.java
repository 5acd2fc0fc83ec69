package shop;

import java.time.Duration;
import java.util.List;
import org.springframework.dao.DataAccessException;
import org.springframework.data.redis.core.RedisOperations;
import org.springframework.data.redis.core.SessionCallback;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.stereotype.Service;

@Service
class Orders {
  private static final String QUEUE = "orders";

  private final StringRedisTemplate redis;

  Orders(StringRedisTemplate redis) {
    this.redis = redis;
  }

  /** Takes one of a product and queues its order. False if none is left. */
  boolean place(String product) {
    while (true) {
      Boolean placed = redis.execute(new Placing(product));
      if (placed != null) {
        return placed;
      }
    }
  }

  /** The next order, or null if none comes within the time. */
  String next(Duration time) {
    return redis.opsForList().rightPop(QUEUE, time);
  }

  /** Null if another order has changed the stock meanwhile. */
  private record Placing(String product) implements SessionCallback<Boolean> {
    @Override
    @SuppressWarnings("unchecked")
    public <K, V> Boolean execute(RedisOperations<K, V> any) throws DataAccessException {
      var redis = (RedisOperations<String, String>) any;
      String stock = "stock:" + product;
      redis.watch(stock);
      String left = redis.opsForValue().get(stock);
      if (left == null || left.equals("0")) {
        redis.unwatch();
        return false;
      }
      redis.multi();
      redis.opsForValue().decrement(stock);
      redis.opsForList().leftPush(QUEUE, product);
      List<Object> replies = redis.exec();
      return replies == null || replies.isEmpty() ? null : true;
    }
  }
}
