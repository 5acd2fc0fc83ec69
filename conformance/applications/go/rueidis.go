package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

func connectRueidis() rueidis.Client {
	options := rueidis.ClientOption{InitAddress: []string{address}}
	if len(sentinels) > 0 {
		options = rueidis.ClientOption{InitAddress: sentinels, Sentinel: rueidis.SentinelOption{MasterSet: master}}
	}
	client, err := rueidis.NewClient(options)
	for err != nil {
		tell("start", "error", err)
		time.Sleep(100 * time.Millisecond)
		client, err = rueidis.NewClient(options)
	}
	return client
}

// rueidis with its defaults, its cache of values too, so that its connections begin with CLIENT TRACKING.
func rueidisClient(string) {
	client := connectRueidis()
	incr := func(client rueidis.Client, key string) (int64, error) {
		return client.Do(ctx, client.B().Incr().Key(key).Build()).AsInt64()
	}
	each("loop", 10*time.Millisecond, func(n int) (int64, error) { return incr(client, fmt.Sprint("loop:", n)) })
	script := rueidis.NewLuaScript("return redis.call('incr', KEYS[1])")
	each("scripts", 20*time.Millisecond, func(n int) (int64, error) {
		return script.Exec(ctx, client, []string{fmt.Sprint("scripts:", n)}, nil).AsInt64()
	})
	each("transactions", 20*time.Millisecond, func(n int) (times int64, err error) {
		key := fmt.Sprint("transactions:", n)
		err = client.Dedicated(func(own rueidis.DedicatedClient) error {
			replies := own.DoMulti(ctx, own.B().Multi().Build(), own.B().Incr().Key(key).Build(),
				own.B().Get().Key(key).Build(), own.B().Exec().Build())
			results, err := replies[3].ToArray()
			if err == nil {
				times, err = results[0].AsInt64()
			}
			return err
		})
		return
	})
	// The cache has to follow: a value that was read before is another one now.
	each("cache", 20*time.Millisecond, func(n int) (int64, error) {
		if err := client.Do(ctx, client.B().Set().Key("cache").Value(strconv.Itoa(n)).Build()).Error(); err != nil {
			return 0, err
		}
		for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			value, err := client.DoCache(ctx, client.B().Get().Key("cache").Cache(), time.Minute).AsInt64()
			if err != nil {
				return 0, err
			}
			if value == int64(n) {
				return 1, nil
			}
		}
		return 0, fmt.Errorf("the cache is stale for two seconds")
	})
	each("connections", 250*time.Millisecond, func(n int) (int64, error) {
		client := connectRueidis()
		defer client.Close()
		return incr(client, fmt.Sprint("connections:", n))
	})

	send("queue", 20*time.Millisecond, func(n int) error {
		return client.Do(ctx, client.B().Rpush().Key("queue").Element(strconv.Itoa(n)).Build()).Error()
	})
	forever("queue", func() error {
		item, err := client.Do(ctx, client.B().Blpop().Key("queue").Timeout(5).Build()).AsStrSlice()
		if err == nil {
			tell("queue", "done", item[1])
		} else if rueidis.IsRedisNil(err) {
			return nil
		}
		return err
	})

	// Receive returns when the subscription is lost, and the application calls it again.
	forever("pubsub", func() error {
		return client.Receive(ctx, client.B().Subscribe().Channel("news").Build(), func(message rueidis.PubSubMessage) {
			tell("pubsub", "done", message.Message)
		})
	})
	each("pubsub", 20*time.Millisecond, func(n int) (int64, error) {
		return 0, client.Do(ctx, client.B().Publish().Channel("news").Message(strconv.Itoa(n)).Build()).Error()
	})
}
