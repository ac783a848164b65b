package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/test/chaos/internal/history"
	"github.com/weir-go/weir/test/chaos/internal/wire"
)

// kinds are the faults, by their names in the report.
var kinds = []struct {
	name string
	do   func(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error)
}{
	{"kill process", killProcess},
	{"stop process", stopProcess},
	{"partition", partition},
	{"failover", failover},
	{"stop primary", stopPrimary},
	{"skew", skew},
	{"kill primary", killPrimary},
	{"cut", cut},
	{"slow", slow},
	{"stop replica", stopReplica},
	{"lossy", lossy},
	{"script flush", scriptFlush},
	{"client kill", clientKill},
	{"Sentinel: kill", sentinelKill},
	{"Sentinel: failover", sentinelFailover},
	{"Cluster: kill", clusterKill},
	{"Cluster: failover", clusterFailover},
}

// fault is a fault that was carried out. Instants are by history.Monotonic.
type fault struct {
	kind, text string
	from, to   int64
	processes  []int // the processes that it hit
	shards     []string
	lost       string // the shard that lost counts: all of them, or the last moments'
	everything bool   // all counts were lost
}

// carryOut carries out faults in an order that random gives, until end or until ctx is
// done.
func (s *stack) carryOut(ctx context.Context, random *rand.Rand, end time.Time, log func(*fault)) ([]*fault, error) {
	var done []*fault
	pause := func() { time.Sleep(time.Second + upTo(random, time.Second)) }
	for pause(); ; {
		for _, k := range random.Perm(len(kinds)) {
			lasts := 300*time.Millisecond + upTo(random, 900*time.Millisecond)
			if ctx.Err() != nil || time.Until(end) < lasts+2*time.Second {
				return done, nil
			}
			f, err := kinds[k].do(s, random, lasts)
			if err != nil {
				return done, fmt.Errorf("%s: %w", kinds[k].name, err)
			}
			f.kind = kinds[k].name
			done = append(done, f)
			log(f)
			pause()
		}
	}
}

func upTo(random *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(random.Int64N(int64(d)))
}

// during returns a fault that begins now and ends when harm has returned.
func during(f *fault, harm func() error) (*fault, error) {
	f.from = history.Monotonic()
	err := harm()
	f.to = history.Monotonic()
	return f, err
}

func (s *stack) anyShard(random *rand.Rand) int { return random.IntN(len(s.shards)) }

func (s *stack) anyWorker(random *rand.Rand) *worker { return s.workers[random.IntN(len(s.workers))] }

func (s *stack) allProcesses() []int {
	order := make([]int, len(s.workers))
	for i := range order {
		order[i] = i
	}
	return order
}

// allShards returns the names of the shards, and of the parts of the Cluster, that contain
// keys of the load.
func (s *stack) allShards() []string {
	shards := slices.Sorted(maps.Values(s.shardOf))
	return slices.Compact(shards)
}

func killProcess(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	w := s.anyWorker(random)
	f := &fault{text: fmt.Sprintf("SIGKILL of process %d", w.work.Process), processes: []int{w.work.Process}, shards: s.allShards()}
	return during(f, func() error {
		w.kill()
		time.Sleep(lasts)
		return w.start()
	})
}

func stopProcess(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	w := s.anyWorker(random)
	f := &fault{text: fmt.Sprintf("SIGSTOP of process %d", w.work.Process), processes: []int{w.work.Process}, shards: s.allShards()}
	return during(f, func() error {
		w.pause()
		time.Sleep(lasts)
		w.resume()
		return nil
	})
}

func stopPrimary(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	sh := s.shards[s.anyShard(random)]
	f := &fault{text: "SIGSTOP of the primary of " + sh.name, processes: s.allProcesses(), shards: []string{sh.name}}
	return during(f, func() error {
		sh.primary.Pause()
		time.Sleep(lasts)
		sh.primary.Resume()
		return nil
	})
}

func stopReplica(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	sh := s.shards[s.anyShard(random)]
	f := &fault{text: "SIGSTOP of the replica of " + sh.name}
	return during(f, func() error {
		sh.replica.Pause()
		time.Sleep(lasts)
		sh.replica.Resume()
		return nil
	})
}

func killPrimary(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	sh := s.shards[s.anyShard(random)]
	f := &fault{text: "SIGKILL of the primary of " + sh.name + ", back empty", processes: s.allProcesses(), shards: []string{sh.name}, lost: sh.name, everything: true}
	f, err := during(f, func() error {
		sh.primary.Kill()
		time.Sleep(lasts)
		return sh.primary.Restart()
	})
	if err != nil {
		return f, err
	}
	return f, follow(sh.replica, sh.primary) // until it follows, the replica still has the lost counts
}

// failover kills a primary and promotes its replica, and redirects the primary's address to
// the replica, as in a managed Redis.
func failover(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	i := s.anyShard(random)
	sh := s.shards[i]
	f := &fault{text: "SIGKILL of the primary of " + sh.name + ", the replica takes over", processes: s.allProcesses(), shards: []string{sh.name}, lost: sh.name}
	f, err := during(f, func() error {
		sh.primary.Kill()
		time.Sleep(lasts)
		sh.primary, sh.replica = sh.replica, sh.primary
		if err := promote(sh.primary); err != nil {
			return err
		}
		for _, w := range s.workers {
			w.primary[i].Redirect(sh.primary.Addr)
		}
		return nil
	})
	if err == nil {
		err = sh.replica.Restart()
	}
	if err == nil {
		err = follow(sh.replica, sh.primary)
	}
	for _, w := range s.workers {
		w.replica[i].Redirect(sh.replica.Addr)
	}
	return f, err
}

func onLink(s *stack, random *rand.Rand, lasts time.Duration, text string, harm func(*wire.Link) (undo func() error)) (*fault, error) {
	w, i := s.anyWorker(random), s.anyShard(random)
	f := &fault{text: fmt.Sprintf("process %d and shard %s %s", w.work.Process, s.shards[i].name, text), processes: []int{w.work.Process}, shards: []string{s.shards[i].name}}
	return during(f, func() error {
		undo := harm(w.primary[i])
		w.replica[i].Cut()
		time.Sleep(lasts)
		if err := w.replica[i].Mend(); err != nil {
			return err
		}
		return undo()
	})
}

// poison returns a harm that injects toxics.
func poison(toxics ...wire.Toxic) func(*wire.Link) func() error {
	return func(l *wire.Link) (undo func() error) {
		l.Inject(toxics...)
		return func() error { l.Heal(); return nil }
	}
}

func partition(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	return onLink(s, random, lasts, "apart", poison(
		wire.Toxic{Type: "timeout", Attributes: wire.Attributes{"timeout": 0}},
		wire.Toxic{Type: "timeout", Upstream: true, Attributes: wire.Attributes{"timeout": 0}}))
}

func cut(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	return onLink(s, random, lasts, "cut, connections refused", func(l *wire.Link) (undo func() error) {
		l.Cut()
		return l.Mend
	})
}

func slow(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	return onLink(s, random, lasts, "40 ms apart, give or take 30", poison(
		wire.Toxic{Type: "latency", Attributes: wire.Attributes{"latency": 40, "jitter": 30}}))
}

func lossy(s *stack, random *rand.Rand, lasts time.Duration) (*fault, error) {
	return onLink(s, random, lasts, "over connections that break", poison(
		wire.Toxic{Type: "limit_data", Attributes: wire.Attributes{"bytes": 1000 + random.IntN(4000)}}))
}

// maxSkew is how far a process's clock may be off, in ms. Two clocks differ by less than the
// 5 s that a count outlives its window.
const maxSkew = 2000

func skew(s *stack, random *rand.Rand, _ time.Duration) (*fault, error) {
	w := s.anyWorker(random)
	step := random.Int64N(2*maxSkew) - maxSkew
	return during(&fault{text: fmt.Sprintf("the clock of process %d is %v off", w.work.Process, time.Duration(step)*time.Millisecond)}, func() error {
		return w.skew(step)
	})
}

func scriptFlush(s *stack, random *rand.Rand, _ time.Duration) (*fault, error) {
	sh := s.shards[s.anyShard(random)]
	return during(&fault{text: "SCRIPT FLUSH on " + sh.name, processes: s.allProcesses(), shards: []string{sh.name}}, func() error {
		return ask(sh.primary, "script", "flush")
	})
}

func clientKill(s *stack, random *rand.Rand, _ time.Duration) (*fault, error) {
	sh := s.shards[s.anyShard(random)]
	return during(&fault{text: "CLIENT KILL of all on " + sh.name, processes: s.allProcesses(), shards: []string{sh.name}}, func() error {
		return ask(sh.primary, "client", "kill", "type", "normal", "skipme", "yes")
	})
}
