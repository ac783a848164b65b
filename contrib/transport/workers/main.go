// Command workers fetches pages of an API in five workers. All processes of it together send ten
// requests a second.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/contrib/transport"
	"github.com/weir-go/weir/throttler"
)

func main() {
	addr := flag.String("redis", "127.0.0.1:6379", "the Redis that the processes share")
	flag.Parse()
	server, err := redisbackend.NewClient(&redis.UniversalOptions{Addrs: []string{*addr}})
	if err != nil {
		log.Fatal(err)
	}
	backend, err := redisbackend.New([]redisbackend.Shard{{Name: "a", Primary: server}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	api := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}}}
	inTurn, err := transport.New(throttler.New(backend, nil), transport.ByHost(api), &transport.Options{Retries: 3})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: inTurn, Timeout: time.Minute}
	pages := make(chan string)
	var workers sync.WaitGroup
	for range 5 {
		workers.Go(func() {
			for page := range pages {
				response, err := client.Get(page)
				if err != nil {
					log.Print(err)
					continue
				}
				n, err := io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				fmt.Println(page, response.Status, n, err)
			}
		})
	}
	for _, page := range flag.Args() {
		pages <- page
	}
	close(pages)
	workers.Wait()
}
