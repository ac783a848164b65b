package testserver

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Never is a time that no test takes.
const Never = time.Hour

// Sentinels are Redis Sentinel processes that watch one primary and agree on its
// failover.
type Sentinels struct {
	Name  string // of the primary, in the Sentinels
	Addrs []string

	servers []*Server
}

// Sentinel starts three Sentinels that watch primary under name and end with the test. It
// returns when they know each other and the primary's replicas. They promote a replica when
// two of them have missed the primary for downAfter. Lines of their configuration may follow,
// such as "sentinel auth-pass a secret".
func Sentinel(t testing.TB, name string, primary *RedisServer, replicas int, downAfter time.Duration, lines ...string) *Sentinels {
	t.Helper()
	s, err := StartSentinels(name, primary, replicas, downAfter, lines...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// StartSentinels is like Sentinel, for use outside tests. The caller must call Stop.
func StartSentinels(name string, primary *RedisServer, replicas int, downAfter time.Duration, lines ...string) (*Sentinels, error) {
	const sentinels, quorum = 3, 2
	host, port, err := net.SplitHostPort(primary.Addr)
	if err != nil {
		return nil, err
	}
	lines = append([]string{
		"bind 127.0.0.1",
		fmt.Sprintf("sentinel monitor %s %s %s %d", name, host, port, quorum),
		fmt.Sprintf("sentinel down-after-milliseconds %s %d", name, downAfter.Milliseconds()),
		fmt.Sprintf("sentinel failover-timeout %s 5000", name),
	}, lines...)
	command := func(port, dir string) *exec.Cmd {
		file := filepath.Join(dir, "sentinel.conf")
		if _, err := os.Stat(file); err != nil { // a Sentinel writes its state to the file
			_ = os.WriteFile(file, []byte("port "+port+"\ndir "+dir+"\n"+strings.Join(lines, "\n")+"\n"), 0o600) // after an error, it does not start
		}
		return exec.Command("redis-server", file, "--sentinel")
	}
	s := &Sentinels{Name: name}
	for range sentinels {
		server, err := start("redis-server", command, redisAnswers)
		if err != nil {
			s.Stop()
			return nil, err
		}
		s.servers = append(s.servers, server)
		s.Addrs = append(s.Addrs, server.Addr)
	}
	discovered := fmt.Sprintf("slaves=%d,sentinels=%d", replicas, sentinels)
	for _, addr := range s.Addrs {
		if err := await(addr, "INFO sentinel", "master0:", func(status string) bool {
			return strings.Contains(status, "status=ok") && strings.HasSuffix(status, discovered)
		}); err != nil {
			s.Stop()
			return nil, fmt.Errorf("sentinel %w", err)
		}
	}
	return s, nil
}

// Primary returns the address of the primary, from the first Sentinel that answers.
func (s *Sentinels) Primary() (addr string, err error) {
	for _, sentinel := range s.Addrs {
		var status string
		if status, err = ask(sentinel, "INFO sentinel", "master0:"); err == nil {
			_, addr, _ = strings.Cut(status, "address=")
			addr, _, _ = strings.Cut(addr, ",")
			return addr, nil
		}
	}
	return "", err
}

// Failover has the Sentinels promote a replica while the primary is alive. It returns when
// they have begun.
func (s *Sentinels) Failover() error {
	_, err := ask(s.Addrs[0], "SENTINEL FAILOVER "+s.Name, "+OK")
	return err
}

// Said returns the Sentinels' logs.
func (s *Sentinels) Said() string {
	var text strings.Builder
	for _, server := range s.servers {
		output, _ := os.ReadFile(filepath.Join(server.dir, "log")) // without it the rest still helps
		fmt.Fprintf(&text, "Sentinel at %s:\n%s", server.Addr, output)
	}
	return text.String()
}

// Stop kills the Sentinels and removes their files.
func (s *Sentinels) Stop() {
	for _, server := range s.servers {
		server.Stop()
	}
}

// await asks addr a question until right reports true for the text after field.
func await(addr, question, field string, right func(string) bool) error {
	for deadline := time.Now().Add(agreeTimeout); ; time.Sleep(5 * pollEvery) {
		value, err := ask(addr, question, field)
		if err == nil && right(value) {
			return nil
		}
		if time.Now().After(deadline) {
			if err == nil {
				err = fmt.Errorf("%s%s", field, value)
			}
			return fmt.Errorf("%s: waited %v: %w", addr, agreeTimeout, err)
		}
	}
}
