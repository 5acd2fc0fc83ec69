// Runs GET, INCR and a pipeline with go-redis and rueidis. `run` explains the arguments and the lines.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

type library func(name string, keys []string) (string, error)

func goRedis(kind, address string) library {
	var client redis.UniversalClient
	if kind == "cluster" {
		client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	} else {
		client = redis.NewClient(&redis.Options{Addr: address})
	}
	return func(name string, keys []string) (string, error) {
		if name == "PIPELINE" {
			pipeline := client.Pipeline()
			for _, key := range keys {
				pipeline.Incr(context.Background(), key)
			}
			commands, err := pipeline.Exec(context.Background())
			return fmt.Sprint(commands), err
		}
		if name == "GET" {
			return client.Get(context.Background(), keys[0]).Result()
		}
		value, err := client.Incr(context.Background(), keys[0]).Result()
		return fmt.Sprint(value), err
	}
}

func rueidisClient(kind, address string) library {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{address},
		ForceSingleClient: kind != "cluster",
	})
	if err != nil {
		panic(err)
	}
	return func(name string, keys []string) (string, error) {
		if name == "PIPELINE" {
			var commands rueidis.Commands
			for _, key := range keys {
				commands = append(commands, client.B().Incr().Key(key).Build())
			}
			for _, result := range client.DoMulti(context.Background(), commands...) {
				if result.Error() != nil {
					return "", result.Error()
				}
			}
			return "both", nil
		}
		if name == "GET" {
			return client.Do(context.Background(), client.B().Get().Key(keys[0]).Build()).ToString()
		}
		value, err := client.Do(context.Background(), client.B().Incr().Key(keys[0]).Build()).AsInt64()
		return fmt.Sprint(value), err
	}
}

func main() {
	library, kind, address := os.Args[1], os.Args[2], "127.0.0.1:"+os.Args[3]
	run := goRedis
	if library == "rueidis" {
		run = rueidisClient
	}
	ask := run(kind, address)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		value, err := ask(words[0], words[1:])
		answer := map[string]string{"value": value}
		if err != nil {
			answer = map[string]string{"error": fmt.Sprintf("%T", err)}
		}
		text, _ := json.Marshal(answer)
		fmt.Println(string(text))
	}
}
