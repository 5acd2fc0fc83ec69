package shop;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.respool.NotSentException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.data.redis.RedisConnectionFailureException;
import org.springframework.data.redis.core.StringRedisTemplate;

/** The shop when its server is gone. */
@Timeout(60)
class OutageTest {
  @Test
  void exceptionTellsThatTheRequestWasNotSent() {
    Server server = new Server();
    try (var shop =
        new SpringApplicationBuilder(Shop.class).run("--spring.data.redis.url=" + server.url(0))) {
      StringRedisTemplate redis = shop.getBean(StringRedisTemplate.class);
      redis.opsForValue().set("k", "v");
      server.kill();
      // The request of the first call may still reach the closed connection.
      assertThatThrownBy(() -> redis.opsForValue().get("k"))
          .isInstanceOf(RedisConnectionFailureException.class);
      assertThatThrownBy(() -> redis.opsForValue().increment("n"))
          .isInstanceOf(RedisConnectionFailureException.class)
          .hasCauseInstanceOf(NotSentException.class);
    }
  }
}
