// Applications in Go; the first argument says which one this process is.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var (
	stopped atomic.Bool
	out     sync.Mutex
	ctx     = context.Background()
	address = os.Getenv("REDIS_HOST") + ":" + os.Getenv("REDIS_PORT")
	master  = os.Getenv("REDIS_MASTER")
	// Empty where the application knows its server by address.
	sentinels = strings.FieldsFunc(os.Getenv("REDIS_SENTINELS"), func(r rune) bool { return r == ',' })
)

func main() {
	go listen()
	map[string]func(string){"go-redis": goRedis, "rueidis": rueidisClient, "asynq": asynqQueue}[os.Args[1]](os.Args[2])
	select {}
}

// A line on standard input stops the senders; its end stops the process.
func listen() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		stopped.Store(true)
	}
	os.Exit(0)
}

func tell(activity, event string, detail any) {
	out.Lock()
	defer out.Unlock()
	fmt.Printf("%s %s %s\n", activity, event, strings.ReplaceAll(fmt.Sprint(detail), "\n", " "))
}

// each does step with 1, 2, 3, ... until told to stop; step returns how often the server has executed the item.
func each(activity string, pace time.Duration, step func(n int) (int64, error)) {
	go func() {
		for n := 1; !stopped.Load(); n++ {
			times, err := step(n)
			if err != nil {
				tell(activity, "error", err)
			} else {
				for ; times > 0; times-- {
					tell(activity, "done", n)
				}
			}
			time.Sleep(pace)
		}
	}()
}

// send does step with 1, 2, 3, ... until told to stop; another part of the application receives the items.
func send(activity string, pace time.Duration, step func(n int) error) {
	each(activity, pace, func(n int) (int64, error) {
		err := step(n)
		if err == nil {
			tell(activity, "sent", n)
		}
		return 0, err
	})
}

// forever does step as a consumer does.
func forever(activity string, step func() error) {
	go func() {
		for {
			if err := step(); err != nil {
				tell(activity, "error", err)
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
