package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"

	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
)

// settings say how much to measure.
type settings struct {
	passes      int
	sample      time.Duration // length of a measurement
	clients     int           // keys of the rows with many keys
	goroutines  []int         // for allowed decisions
	contended   []int         // goroutines for one hot key, and for refusals
	distant     []int         // goroutines behind the network of 1 ms
	patience    time.Duration // with a hung Redis
	connections int           // of HTTP clients
	processes   []int         // of a fleet

	// Growth rows.
	maxKeys    int   // the largest number of keys; the smallest is 10
	logs       []int // charges
	crowds     []int // goroutines
	shards     []int
	shardsKeys int // keys that the shards divide
}

var (
	full = settings{
		passes: 5, sample: 300 * time.Millisecond, clients: 100_000,
		goroutines: []int{1, 4, 16, 64, 256}, contended: []int{1, 4, 16, 64, 256}, distant: []int{1, 64, 256},
		patience: 15 * time.Second, connections: 64, processes: []int{1, 10, 50, 200},
		maxKeys: 1_000_000, logs: []int{10, 100, 1000, 10_000}, crowds: []int{1, 4, 16, 64, 256, 1000},
		shards: []int{1, 2, 4, 8, 16, 32, 64}, shardsKeys: 1_000_000,
	}
	quick = settings{
		passes: 3, sample: 50 * time.Millisecond, clients: 10_000,
		goroutines: []int{1, 16, 64, 256}, contended: []int{64}, distant: []int{64},
		patience: 2 * time.Second, connections: 64, processes: []int{1, 10},
		maxKeys: 100_000, logs: []int{10, 1000, 10_000}, crowds: []int{1, 16, 256, 1000},
		shards: []int{1, 8, 64}, shardsKeys: 1_000_000,
	}
)

func (s settings) warmup() time.Duration { return s.sample / 4 }

const (
	unlimited = 1_000_000_000 // quota per hour; no run reaches it
	window    = time.Hour
	roundTrip = time.Millisecond // of the simulated network
)

// A lab holds the shared resources of measurements: servers, started on first use, and keys.
type lab struct {
	settings
	keys []string

	mu      sync.Mutex
	servers map[string]*server
	relay   *measure.Relay
}

// A server is a redis-server started by a lab.
type server struct {
	*testserver.RedisServer
	admin  *redis.Client
	filled map[string]bool // names of the peers and patterns that have seen all their keys
}

func newLab(s settings) *lab {
	return &lab{settings: s, keys: clientKeys(s.clients), servers: make(map[string]*server)}
}

// clientKeys returns n keys of 21 bytes.
func clientKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("client-%014d", i)
	}
	return keys
}

// close stops all servers.
func (l *lab) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.relay != nil {
		l.relay.Close()
	}
	for name := range l.servers {
		l.stop(name)
	}
}

func (l *lab) stop(name string) {
	s := l.servers[name]
	_ = s.admin.Close()
	s.Stop()
	delete(l.servers, name)
}

// redis returns the redis-server of that name.
func (l *lab) redis(name string) (*server, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.servers[name]; s != nil {
		return s, nil
	}
	started, err := testserver.StartRedis()
	if err != nil {
		return nil, err
	}
	s := &server{started, redis.NewClient(&redis.Options{Addr: started.Addr, DisableIdentity: true}), make(map[string]bool)}
	l.servers[name] = s
	return s, nil
}

// network returns the address of the main server behind the simulated network.
func (l *lab) network(s *server) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.relay == nil {
		relay, err := measure.StartRelay(s.Addr, roundTrip)
		if err != nil {
			return "", err
		}
		l.relay = relay
	}
	return l.relay.Addr, nil
}

// fill lets peer see each key of p once, so that measurements do not include new keys.
func (s *server) fill(ctx context.Context, peer peers.Peer, p pattern, config peers.Config) error {
	what := peer.Name + ", " + p.name
	if s.filled[what] {
		return nil
	}
	limiter, err := peer.Open(config)
	if err != nil {
		return err
	}
	defer limiter.Close()
	if err := fill(ctx, limiter, p.keys); err != nil {
		return err
	}
	s.filled[what] = true
	return nil
}

func fill(ctx context.Context, l *peers.Limiter, keys []string) error {
	const goroutines = 64
	errs := make(chan error, goroutines)
	for g := range goroutines {
		go func() {
			var err error
			for i := g; i < len(keys) && err == nil && ctx.Err() == nil; i += goroutines {
				err = takeForSure(l, keys[i])
			}
			errs <- err
		}()
	}
	var failed error
	for range goroutines {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	if failed == nil {
		failed = ctx.Err()
	}
	return failed
}

// takeForSure tries a few times: when the hash table of a server with millions of keys grows,
// the server stops for longer than some timeouts.
func takeForSure(l *peers.Limiter, key string) error {
	_, err := l.Take(context.Background(), key)
	for tries := 1; err != nil && tries < 5; tries++ {
		_, err = l.Take(context.Background(), key)
	}
	return err
}

// cpu returns the CPU time used by the server.
func (s *server) cpu() (time.Duration, error) {
	user, err := s.info("cpu", "used_cpu_user")
	if err != nil {
		return 0, err
	}
	system, err := s.info("cpu", "used_cpu_sys")
	return time.Duration((user + system) * float64(time.Second)), err
}

// usedMemory returns the bytes allocated by the server.
func (s *server) usedMemory() (float64, error) { return s.info("memory", "used_memory") }

// info returns a number from INFO.
func (s *server) info(section, field string) (float64, error) {
	text, err := s.infoText(section, field)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

func (s *server) infoText(section, field string) (string, error) {
	text, err := s.admin.Info(context.Background(), section).Result()
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(text, "\r\n") {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return value, nil
		}
	}
	return "", fmt.Errorf("INFO %s has no %s", section, field)
}
