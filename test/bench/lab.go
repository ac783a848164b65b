package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/bench/internal/measure"
	"github.com/weir-go/weir/test/bench/peers"
	"github.com/weir-go/weir/test/bench/result"
)

// settings say how much to measure.
type settings struct {
	passes      int
	sample      time.Duration // length of a measurement
	clients     int           // keys of the rows with many keys
	goroutines  []int         // for allowed decisions
	contended   []int         // goroutines for one hot key, and for refusals
	distant     []int         // goroutines behind the network of 1 ms
	awake       []int         // goroutines on processors that do not sleep
	patience    time.Duration // with a hung Redis
	connections int           // of HTTP and gRPC clients
	processes   []int         // that share the callers

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
		goroutines: []int{1, 4, 16, 64, 256}, contended: []int{1, 4, 16, 64, 256}, distant: []int{1, 64, 256}, awake: []int{1, 16},
		patience: 15 * time.Second, connections: 64, processes: []int{1, 10, 50, 200},
		maxKeys: 1_000_000, logs: []int{10, 100, 1000, 10_000}, crowds: []int{1, 4, 16, 64, 256, 1000},
		shards: []int{1, 2, 4, 8, 16, 32, 64}, shardsKeys: 1_000_000,
	}
	quick = settings{
		passes: 3, sample: 50 * time.Millisecond, clients: 10_000,
		goroutines: []int{1, 16, 64, 256}, contended: []int{64}, distant: []int{64}, awake: []int{1, 16},
		patience: 2 * time.Second, connections: 64, processes: []int{1, 10},
		maxKeys: 100_000, logs: []int{10, 1000, 10_000}, crowds: []int{1, 16, 256, 1000},
		shards: []int{1, 8, 64}, shardsKeys: 1_000_000,
	}
)

func (s settings) warmup() time.Duration { return s.sample / 4 }

const (
	unlimited = 1_000_000_000 // quota per hour; no run reaches it
	window    = time.Hour
)

// A lab holds the shared resources of measurements: servers, started on first use, and keys.
type lab struct {
	settings
	keys     []string
	servers  map[string]*server
	network  string // the address of the main server behind a network, if it was started
	hangUp   func() // ends the network
	programs string // the directory of the built services, if any
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
	if l.network != "" {
		l.hangUp()
	}
	if l.programs != "" {
		_ = os.RemoveAll(l.programs)
	}
	for name := range l.servers {
		l.stop(name)
	}
}

func (l *lab) stop(name string) {
	_ = l.servers[name].admin.Close()
	l.servers[name].Stop()
	delete(l.servers, name)
}

// run measures rows, and describes the machine and the settings.
func (l *lab) run(ctx context.Context, rows []row, seed uint64, isQuick bool, progress io.Writer) (*result.Set, error) {
	load, _ := os.ReadFile("/proc/loadavg") // empty on other systems
	machine := result.Machine{CPU: cpuid.CPU.BrandName, Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	machine.Load, _, _ = strings.Cut(string(load), " ")
	var err error
	if machine.Redis, err = try(func() string { return l.redis("main").info("server", "redis_version") }); err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "%s, %d cores; seed %d\n", machine.CPU, machine.Cores, seed)
	set := &result.Set{
		Machine: machine, Commit: "unknown", Started: time.Now().UTC().Truncate(time.Second), Seed: seed,
		Passes: l.passes, SampleMS: l.sample.Milliseconds(), PatienceMS: l.patience.Milliseconds(), Keys: len(l.keys), Quick: isQuick,
	}
	if output, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output(); err == nil {
		set.Commit = strings.TrimSpace(string(output))
	}
	set.Results, err = run(ctx, rows, l.passes, rand.New(rand.NewPCG(seed, seed)), progress)
	return set, err
}

// A server is a redis-server started by a lab.
type server struct {
	*testserver.RedisServer
	admin  *redis.Client
	filled map[string]bool // names of the peers and patterns that have seen all their keys
}

// redis returns the redis-server of that name.
func (l *lab) redis(name string) *server {
	if l.servers[name] == nil {
		started := must(testserver.StartRedis())
		l.servers[name] = &server{started, redis.NewClient(&redis.Options{Addr: started.Addr, DisableIdentity: true}), make(map[string]bool)}
	}
	return l.servers[name]
}

// behindNetwork returns the address of the main server behind a network with a round trip of 1 ms.
func (l *lab) behindNetwork(s *server) string {
	if l.network == "" {
		var err error
		l.network, l.hangUp, err = measure.Relay(s.Addr, time.Millisecond)
		check(err)
	}
	return l.network
}

// fill lets peer see each key of p once, so that measurements do not include new keys.
func (s *server) fill(ctx context.Context, peer peers.Peer, p pattern, config peers.Config) {
	if name := peer.Name + ", " + p.name; !s.filled[name] {
		useLimiter(peer.Open, config, func(l *peers.Limiter) sample {
			fill(ctx, l, p.keys)
			return sample{}
		})
		s.filled[name] = true
	}
}

// useLimiter opens a limiter for a measurement, and closes it.
func useLimiter(open func(peers.Config) (*peers.Limiter, error), config peers.Config, measure func(*peers.Limiter) sample) sample {
	limiter := must(open(config))
	defer limiter.Close()
	return measure(limiter)
}

// fill takes one unit of each key.
func fill(ctx context.Context, l *peers.Limiter, keys []string) {
	const goroutines = 64
	errs := make(chan error, goroutines)
	for g := range goroutines {
		go func() {
			var err error
			for i := g; i < len(keys) && err == nil && ctx.Err() == nil; i += goroutines {
				// When the hash table of a server with millions of keys grows, the server stops for
				// longer than some timeouts.
				for tries := 0; tries == 0 || err != nil && tries < 5; tries++ {
					_, err = l.Take(context.Background(), keys[i])
				}
			}
			errs <- err
		}()
	}
	var failed error
	for range goroutines {
		failed = errors.Join(failed, <-errs)
	}
	check(failed)
	check(ctx.Err())
}

// cpu returns the CPU time used by the server.
func (s *server) cpu() time.Duration {
	return time.Duration((s.number("cpu", "used_cpu_user") + s.number("cpu", "used_cpu_sys")) * float64(time.Second))
}

// number returns a number from INFO.
func (s *server) number(section, field string) float64 {
	return must(strconv.ParseFloat(s.info(section, field), 64))
}

func (s *server) info(section, field string) string {
	for line := range strings.SplitSeq(must(s.admin.Info(context.Background(), section).Result()), "\r\n") {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return value
		}
	}
	panic(failure{fmt.Errorf("INFO %s has no %s", section, field)})
}
