package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

func connectGoRedis() *redis.Client {
	if len(sentinels) > 0 {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: master, SentinelAddrs: sentinels})
	}
	return redis.NewClient(&redis.Options{Addr: address})
}

// go-redis with its defaults: requests, a queue, a stream, a subscription, scripts, transactions, new connections.
func goRedis(string) {
	client := connectGoRedis()
	script := redis.NewScript("return redis.call('incr', KEYS[1])")

	each("loop", 10*time.Millisecond, func(n int) (int64, error) {
		return client.Incr(ctx, fmt.Sprint("loop:", n)).Result()
	})
	each("scripts", 20*time.Millisecond, func(n int) (int64, error) {
		return script.Run(ctx, client, []string{fmt.Sprint("scripts:", n)}).Int64()
	})
	each("transactions", 20*time.Millisecond, func(n int) (int64, error) {
		var times *redis.IntCmd
		key := fmt.Sprint("transactions:", n)
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			times = pipe.Incr(ctx, key)
			pipe.Get(ctx, key)
			return nil
		})
		return times.Val(), err
	})
	each("watches", 20*time.Millisecond, func(n int) (int64, error) {
		key := fmt.Sprint("watches:", n)
		var times *redis.IntCmd
		err := client.Watch(ctx, func(tx *redis.Tx) error {
			if err := tx.Get(ctx, key).Err(); err != nil && err != redis.Nil {
				return err
			}
			_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				times = pipe.Incr(ctx, key)
				return nil
			})
			return err
		}, key)
		if err != nil {
			return 0, err
		}
		return times.Val(), nil
	})
	each("connections", 250*time.Millisecond, func(n int) (int64, error) {
		client := connectGoRedis()
		defer client.Close()
		return client.Incr(ctx, fmt.Sprint("connections:", n)).Result()
	})

	send("queue", 20*time.Millisecond, func(n int) error { return client.RPush(ctx, "queue", n).Err() })
	forever("queue", func() error {
		item, err := client.BLPop(ctx, 5*time.Second, "queue").Result()
		if err == nil {
			tell("queue", "done", item[1])
		}
		return notNil(err)
	})

	check(client.XGroupCreateMkStream(ctx, "stream", "group", "$").Err())
	send("stream", 20*time.Millisecond, func(n int) error {
		return client.XAdd(ctx, &redis.XAddArgs{Stream: "stream", Values: map[string]any{"n": n}}).Err()
	})
	// "0" reads the unacknowledged entries again, ">" the new ones.
	from := "0"
	forever("stream", func() error {
		found, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "group", Consumer: "consumer", Streams: []string{"stream", from}, Count: 10, Block: 2 * time.Second,
		}).Result()
		if err = notNil(err); err != nil {
			from = "0"
			return err
		}
		if len(found) == 0 || len(found[0].Messages) == 0 {
			from = ">"
			return nil
		}
		for _, message := range found[0].Messages {
			if err := client.XAck(ctx, "stream", "group", message.ID).Err(); err != nil {
				from = "0"
				return err
			}
			tell("stream", "done", message.Values["n"])
		}
		return nil
	})

	news := client.Subscribe(ctx, "news")
	_, err := news.Receive(ctx)
	check(err)
	go func() {
		for message := range news.Channel() {
			tell("pubsub", "done", message.Payload)
		}
	}()
	each("pubsub", 20*time.Millisecond, func(n int) (int64, error) { return 0, client.Publish(ctx, "news", n).Err() })
}

func notNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}
