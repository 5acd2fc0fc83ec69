package main

import (
	"context"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// asynq with its defaults: a server that does tasks, and a client that enqueues them.
func asynqQueue(role string) {
	var connection asynq.RedisConnOpt = asynq.RedisClientOpt{Addr: address}
	if len(sentinels) > 0 {
		connection = asynq.RedisFailoverClientOpt{MasterName: master, SentinelAddrs: sentinels}
	}
	if role == "worker" {
		server := asynq.NewServer(connection, asynq.Config{Concurrency: 4})
		check(server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
			n, err := strconv.Atoi(string(task.Payload()))
			if err == nil {
				tell("jobs", "done", n)
			}
			return err
		})))
		return
	}
	client := asynq.NewClient(connection)
	send("jobs", 20*time.Millisecond, func(n int) error {
		_, err := client.Enqueue(asynq.NewTask("work", []byte(strconv.Itoa(n))))
		return err
	})
}
