package testserver

import (
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// RedisServer is a redis-server process.
type RedisServer struct {
	*Server

	primary *RedisServer // nil for a primary
}

// Redis starts a Redis server that ends with the test. Arguments of redis-server may follow,
// such as "--maxmemory", "1mb". It fails the test if redis-server is not installed.
func Redis(t testing.TB, extraArgs ...string) *RedisServer {
	t.Helper()
	s, err := StartRedis(extraArgs...)
	return stopAtEnd(t, s, err)
}

// RedisReplica starts a replica of primary that ends with the test. It returns when the
// replica has all of the primary's data, and receives writes.
func RedisReplica(t testing.TB, primary *RedisServer, extraArgs ...string) *RedisServer {
	t.Helper()
	s, err := StartRedisReplica(primary, extraArgs...)
	return stopAtEnd(t, s, err)
}

func stopAtEnd(t testing.TB, s *RedisServer, err error) *RedisServer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// StartRedis is like Redis, for use outside tests. The caller must call Stop. The server also
// ends with the program.
func StartRedis(extraArgs ...string) (*RedisServer, error) {
	command := func(port, dir string) *exec.Cmd {
		args := []string{
			"--port", port, "--bind", "127.0.0.1", "--dir", dir,
			"--save", "", "--appendonly", "no",
			"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", // otherwise a replica takes 5 s
		}
		return exec.Command("redis-server", append(args, extraArgs...)...)
	}
	s, err := start("redis-server", command, redisAnswers)
	if err != nil {
		return nil, err
	}
	return &RedisServer{Server: s}, nil
}

// StartRedisReplica is like RedisReplica, for use outside tests. The caller must
// call Stop.
func StartRedisReplica(primary *RedisServer, extraArgs ...string) (*RedisServer, error) {
	s, err := StartRedis(extraArgs...)
	if err != nil {
		return nil, err
	}
	s.primary = primary
	if err := s.follow(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Restart kills the server if it runs, and starts it at the same address, without data. A
// replica follows its primary again, which must run.
func (s *RedisServer) Restart() error {
	if err := s.restart(); err != nil {
		return err
	}
	if s.primary == nil {
		return nil
	}
	return s.follow()
}

// AwaitPrimary returns when a replica has become a primary.
func (s *RedisServer) AwaitPrimary() (instant time.Time, err error) {
	err = await(s.Addr, "INFO replication", "role:", func(role string) bool { return role == "master" })
	return time.Now(), err
}

// follow makes s a replica, and returns when it receives writes. It sends the command instead
// of starting with --replicaof, because a server that starts as a replica waits a second
// before it connects.
func (s *RedisServer) follow() error {
	host, port, err := net.SplitHostPort(s.primary.Addr)
	if err != nil {
		return err
	}
	if _, err := ask(s.Addr, "REPLICAOF "+host+" "+port, "+OK"); err != nil {
		return fmt.Errorf("replica %s of %s: %w", s.Addr, s.primary.Addr, err)
	}
	if err := s.await("the link to be up", "master_link_status:", func(status string) bool { return status == "up" }); err != nil {
		return err
	}
	// A replica with a link that is up may have to wait a second for the stream of writes. A
	// message is a write that leaves nothing behind.
	sent, err := ask(s.primary.Addr, "PUBLISH weir:testserver hello\r\nINFO replication", "master_repl_offset:")
	if err != nil {
		return fmt.Errorf("primary %s: %w", s.primary.Addr, err)
	}
	return s.await("the stream of writes", "slave_repl_offset:", func(value string) bool {
		return offset(value) >= offset(sent)
	})
}

func offset(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return -1 // a replica without an offset
	}
	return n
}

// await asks the replica about a field of INFO replication until it is right.
func (s *RedisServer) await(goal, field string, right func(string) bool) error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(pollEvery) {
		value, err := ask(s.Addr, "INFO replication", field)
		if err != nil {
			return fmt.Errorf("replica %s: %w", s.Addr, err)
		}
		if right(value) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("replica %s of %s: waited %v for %s; %s%s", s.Addr, s.primary.Addr, startTimeout, goal, field, value)
		}
	}
}

func redisAnswers(addr string, pid int) error {
	id, err := ask(addr, "INFO server", "process_id:")
	if err != nil {
		return err
	}
	return isProcess(id, pid)
}
