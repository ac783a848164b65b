package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/chaos/internal/job"
	"github.com/weir-go/weir/test/chaos/internal/wire"
)

// stack contains the servers, the worker processes, and the links between them.
type stack struct {
	shards    []*shard
	watched   *watched
	clustered *clustered
	workers   []*worker

	shardOf map[int]string // by key of the load
}

// Without it, a replica keeps the file of its last synchronization. A restart after it has
// taken over would load the file, with the counts of long ago.
var noSyncFile = []string{"--rdb-del-sync-files", "yes"}

// shard is two servers: a primary, and a replica that follows it.
type shard struct {
	name             string
	primary, replica *testserver.RedisServer
}

// worker is a process and its links.
type worker struct {
	work     work
	primary  []*wire.Link // by shard
	replica  []*wire.Link
	cmd      *exec.Cmd
	orders   io.WriteCloser
	output   *strings.Builder
	records  []string
	recordTo string // directory
}

// newStack starts shards and processes, which write their records to dir. The caller must call
// stop, even after an error.
func newStack(shards, processes int, w work, dir string) (*stack, error) {
	s := new(stack)
	var err error
	if s.watched, err = startWatched(); err != nil {
		return s, err
	}
	if s.clustered, err = startClustered(); err != nil {
		return s, err
	}
	for i := range shards {
		sh := &shard{name: string(rune('a' + i))}
		s.shards = append(s.shards, sh)
		if sh.primary, err = testserver.StartRedis(noSyncFile...); err != nil {
			return s, err
		}
		if sh.replica, err = testserver.StartRedis(noSyncFile...); err != nil {
			return s, err
		}
		if err := follow(sh.replica, sh.primary); err != nil {
			return s, err
		}
	}
	if err := s.findShards(); err != nil {
		return s, err
	}
	for p := range processes {
		w := &worker{work: w, recordTo: dir}
		w.work.Process = p
		s.workers = append(s.workers, w)
		for _, sh := range s.shards {
			primary, err := wire.NewLink(sh.primary.Addr)
			if err != nil {
				return s, err
			}
			w.primary = append(w.primary, primary)
			replica, err := wire.NewLink(sh.replica.Addr)
			if err != nil {
				return s, err
			}
			w.replica = append(w.replica, replica)
			w.work.Shards = append(w.work.Shards, workShard{Name: sh.name, Addrs: []string{primary.Addr}, Replica: replica.Addr})
		}
		w.work.Shards = append(w.work.Shards, s.discovered()...)
		if err := w.start(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// discovered returns the shards with clients that find the primary themselves.
func (s *stack) discovered() []workShard {
	return []workShard{
		{Name: sentinelName, Addrs: s.watched.sentinels.Addrs, Master: sentinelName},
		{Name: clusterName, Addrs: s.clustered.cluster.Addrs},
	}
}

// direct returns all shards, without links.
func (s *stack) direct() []workShard {
	servers := s.discovered()
	for _, sh := range s.shards {
		servers = append(servers, workShard{Name: sh.name, Addrs: []string{sh.primary.Addr}})
	}
	return servers
}

// findShards finds the shards of the load's keys.
func (s *stack) findShards() error {
	b, done, err := open(s.direct())
	if err != nil {
		return err
	}
	defer done()
	s.shardOf = make(map[int]string)
	for key := range windowKeys + exactKeys {
		shard := b.Locate(chargeOf(key))
		if s.shardOf[key] = shard.Shard; shard.Shard == clusterName {
			if s.shardOf[key], err = s.clustered.partOf(shard.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// finish lets the workers end, and returns their errors.
func (s *stack) finish() error {
	var errs []error
	for _, w := range s.workers {
		_ = w.orders.Close()
	}
	for _, w := range s.workers {
		if err := w.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("process %d: %w\n%s", w.work.Process, err, w.output))
		}
		w.cmd = nil
	}
	return errors.Join(errs...)
}

// stop stops all processes, links and servers.
func (s *stack) stop() {
	for _, w := range s.workers {
		w.kill()
		for _, l := range append(w.primary, w.replica...) {
			l.Close()
		}
	}
	if s.watched != nil {
		s.watched.stop()
	}
	if s.clustered != nil {
		s.clustered.stop()
	}
	for _, sh := range s.shards {
		for _, server := range []*testserver.RedisServer{sh.primary, sh.replica} {
			if server != nil {
				server.Stop()
			}
		}
	}
}

// start starts the process, and returns when its clients run.
func (w *worker) start() error {
	w.work.Life = len(w.records)
	w.work.Record = filepath.Join(w.recordTo, fmt.Sprintf("process-%d-%d", w.work.Process, w.work.Life))
	w.records = append(w.records, w.work.Record)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	w.output = new(strings.Builder)
	w.cmd = exec.Command(self)
	w.cmd.Env, w.cmd.Stderr = append(os.Environ(), job.Environ(workVariable, w.work)), w.output
	w.cmd.SysProcAttr = testserver.DieWithParent()
	if w.orders, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := w.cmd.Start(); err != nil {
		w.cmd = nil
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return fmt.Errorf("process %d says %q, and not that it is ready: %w", w.work.Process, line, err)
	}
	return nil
}

func (w *worker) kill() {
	if w.cmd != nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
		w.cmd = nil
	}
}

func (w *worker) pause()  { _ = w.cmd.Process.Signal(syscall.SIGSTOP) }
func (w *worker) resume() { _ = w.cmd.Process.Signal(syscall.SIGCONT) }

// skew sets the process's clock ms ahead.
func (w *worker) skew(ms int64) error {
	w.work.Skew = ms
	_, err := fmt.Fprintln(w.orders, "skew", ms)
	return err
}

// follow makes replica follow primary, and returns when it has the primary's data.
func follow(replica, primary *testserver.RedisServer) error {
	host, port, _ := strings.Cut(primary.Addr, ":")
	if err := ask(replica, "replicaof", host, port); err != nil {
		return err
	}
	admin := redis.NewClient(&redis.Options{Addr: replica.Addr})
	defer admin.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		info, err := admin.Info(context.Background(), "replication").Result()
		if err == nil && strings.Contains(info, "master_link_status:up") {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("replica %s did not follow %s within 20 s: %w", replica.Addr, primary.Addr, err)
		}
	}
}

// promote makes server a primary.
func promote(server *testserver.RedisServer) error { return ask(server, "replicaof", "no", "one") }

func ask(server *testserver.RedisServer, args ...any) error {
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer admin.Close()
	return admin.Do(context.Background(), args...).Err()
}
