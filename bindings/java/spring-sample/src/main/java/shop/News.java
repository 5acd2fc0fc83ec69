package shop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.springframework.data.redis.connection.Message;
import org.springframework.data.redis.connection.MessageListener;
import org.springframework.data.redis.core.StringRedisTemplate;
import org.springframework.stereotype.Component;

/** What the shops tell each other. */
@Component
class News implements MessageListener {
  static final String CHANNEL = "news";

  private final BlockingQueue<String> heard = new LinkedBlockingQueue<>();
  private final StringRedisTemplate redis;

  News(StringRedisTemplate redis) {
    this.redis = redis;
  }

  void tell(String text) {
    redis.convertAndSend(CHANNEL, text);
  }

  /** The next text that was heard, or null after ten seconds. */
  String next() throws InterruptedException {
    return heard.poll(10, TimeUnit.SECONDS);
  }

  @Override
  public void onMessage(Message message, byte[] pattern) {
    heard.add(new String(message.getBody(), StandardCharsets.UTF_8));
  }
}
