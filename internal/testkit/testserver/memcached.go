package testserver

import (
	"os"
	"os/exec"
	"testing"
)

// MemcachedServer is a memcached process.
type MemcachedServer struct {
	*Server
}

// Memcached starts a Memcached server that ends with the test. Arguments of memcached may
// follow, such as "-m", "1". It fails the test if memcached is not installed.
func Memcached(t testing.TB, extraArgs ...string) *MemcachedServer {
	t.Helper()
	s, err := StartMemcached(extraArgs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// StartMemcached is like Memcached, for use outside tests. The caller must call Stop. The
// server also ends with the program.
func StartMemcached(extraArgs ...string) (*MemcachedServer, error) {
	command := func(port, _ string) *exec.Cmd {
		args := []string{"-l", "127.0.0.1", "-p", port, "-U", "0"}
		if os.Getuid() == 0 {
			args = append(args, "-u", "root") // without it, memcached refuses to run as root
		}
		return exec.Command("memcached", append(args, extraArgs...)...)
	}
	s, err := start("memcached", command, memcachedAnswers)
	if err != nil {
		return nil, err
	}
	return &MemcachedServer{s}, nil
}

// Restart kills the server if it runs, and starts it at the same address, empty.
func (s *MemcachedServer) Restart() error { return s.restart() }

func memcachedAnswers(addr string, pid int) error {
	id, err := ask(addr, "stats", "STAT pid ")
	if err != nil {
		return err
	}
	return isProcess(id, pid)
}
