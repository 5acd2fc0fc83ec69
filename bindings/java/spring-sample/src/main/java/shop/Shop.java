package shop;

import io.respool.Respool;
import java.time.Duration;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.data.redis.autoconfigure.JedisClientConfigurationBuilderCustomizer;
import org.springframework.cache.annotation.EnableCaching;
import org.springframework.context.annotation.Bean;
import org.springframework.data.redis.connection.RedisConnectionFactory;
import org.springframework.data.redis.listener.ChannelTopic;
import org.springframework.data.redis.listener.RedisMessageListenerContainer;

/** A shop. Its first two beans are all that respool needs. */
@SpringBootApplication
@EnableCaching
public class Shop {
  @Bean
  Respool respool(@Value("${spring.data.redis.url}") String url) {
    return Respool.options().limit(Duration.ofSeconds(2)).open(url);
  }

  @Bean
  JedisClientConfigurationBuilderCustomizer respoolCustomizer(Respool respool) {
    return builder -> builder.customizeClient(respool::customize);
  }

  @Bean
  RedisMessageListenerContainer listeners(RedisConnectionFactory factory, News news) {
    var container = new RedisMessageListenerContainer();
    container.setConnectionFactory(factory);
    container.addMessageListener(news, new ChannelTopic(News.CHANNEL));
    return container;
  }

  public static void main(String[] arguments) {
    SpringApplication.run(Shop.class, arguments);
  }
}
