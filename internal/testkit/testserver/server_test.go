package testserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestServersAnswerAndEnd(t *testing.T) {
	servers := map[string]*Server{}
	t.Run("running", func(t *testing.T) {
		primary := Redis(t)
		replica := RedisReplica(t, primary)
		servers["primary"], servers["replica"] = primary.Server, replica.Server
		servers["memcached"] = Memcached(t).Server
		for name, s := range servers {
			if err := s.answers(s.Addr, s.Pid()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// WAIT waits for the writes of its own connection.
		if _, err := ask(primary.Addr, "SET planet mars\r\nWAIT 1 5000", ":1"); err != nil {
			t.Fatal(err)
		}
		if _, err := ask(replica.Addr, "GET planet", "mars"); err != nil {
			t.Errorf("replica does not have what its primary has: %v", err)
		}
	})
	for name, s := range servers {
		if conn, err := net.Dial("tcp", s.Addr); err == nil {
			conn.Close()
			t.Errorf("%s still listens after its test", name)
		}
		if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s left its directory: %v", name, err)
		}
	}
}

func TestRestartKeepsAddressAndForgets(t *testing.T) {
	primary := Redis(t)
	replica := RedisReplica(t, primary)
	if _, err := ask(replica.Addr, "INFO replication", "role:slave"); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(primary.Addr, "SET planet mars", "+OK"); err != nil {
		t.Fatal(err)
	}
	pid, addr := primary.Pid(), primary.Addr
	primary.Kill()
	if got := primary.Pid(); got != 0 {
		t.Errorf("killed: Pid() = %d, want 0", got)
	}
	for _, s := range []*RedisServer{primary, replica} {
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	if primary.Pid() == pid || primary.Addr != addr {
		t.Errorf("restarted: process %d at %s, want another than %d at %s", primary.Pid(), primary.Addr, pid, addr)
	}
	if _, err := ask(primary.Addr, "EXISTS planet", ":0"); err != nil {
		t.Errorf("restarted server remembers: %v", err)
	}
	if _, err := ask(replica.Addr, "INFO replication", "role:slave"); err != nil {
		t.Errorf("restarted replica is none: %v", err)
	}
}

func TestPauseHoldsAnswersBack(t *testing.T) {
	for name, s := range map[string]*Server{"redis": Redis(t).Server, "memcached": Memcached(t).Server} {
		s.Pause()
		conn, err := net.Dial("tcp", s.Addr)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("VERSION\r\n")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: paused, but read %d bytes, error %v", name, n, err)
		}
		s.Resume()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			t.Errorf("%s: resumed, but does not answer: %v", name, err)
		}
		s.Pause()
		s.Stop() // must not hang
	}
}

func TestSentinelsFailOver(t *testing.T) {
	primary := Redis(t)
	replica := RedisReplica(t, primary)
	s := Sentinel(t, "a", primary, 1, 200*time.Millisecond)
	if got, err := s.Primary(); err != nil || got != primary.Addr {
		t.Errorf("at first the primary is %s, error %v, want %s", got, err, primary.Addr)
	}
	primary.Kill()
	if err := await(replica.Addr, "INFO replication", "role:", func(role string) bool { return role == "master" }); err != nil {
		t.Error(err)
	}
	if err := await(s.Addrs[0], "INFO sentinel", "address=", func(rest string) bool { return strings.HasPrefix(rest, replica.Addr) }); err != nil {
		t.Error(err)
	}
}

// Each replica of a new cluster knows the epoch of its primary, which no node changes any more.
func TestEpochsOfACluster(t *testing.T) {
	c := Cluster(t, 3, 1)
	for i, addr := range c.Addrs {
		want := strconv.Itoa(i%3 + 1)
		if got, err := ask(addr, "CLUSTER INFO", "cluster_my_epoch:"); err != nil || got != want {
			t.Errorf("node %d: the epoch of its slots is %s, error %v, want %s", i, got, err, want)
		}
	}
}

func TestClusterFailsOver(t *testing.T) {
	c := Cluster(t, 3, 1, "--cluster-node-timeout", "1500") // with less, a busy machine fails over by itself
	for i, how := range map[int]func(){
		0: c.Nodes[0].Kill,
		1: func() {
			if err := c.Failover(c.Nodes[4]); err != nil {
				t.Error(err)
			}
		},
	} {
		how()
		if err := await(c.Nodes[3+i].Addr, "INFO replication", "role:", func(role string) bool { return role == "master" }); err != nil {
			t.Error(err)
		}
	}
}

func TestTLSServerKnowsItsClients(t *testing.T) {
	s := RedisTLS(t)
	ca, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: ServerName}
	config.RootCAs.AppendCertsFromPEM(ca)
	for _, certificates := range [][]tls.Certificate{nil, {pair}} {
		config.Certificates = certificates
		conn, err := tls.Dial("tcp", s.Addr, config)
		if err == nil {
			_, err = askOn(conn, "PING", "+PONG")
		}
		if (err == nil) != (certificates != nil) {
			t.Errorf("with %d certificates: %v", len(certificates), err)
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			s, err := StartRedis()
			if err != nil {
				t.Error(err)
				return
			}
			s.Stop()
		})
	}
	wg.Wait()
}

func TestPortTakenIsSeen(t *testing.T) {
	holder, victim := Redis(t), Redis(t)
	victim.Kill()
	victim.Addr = holder.Addr // answers like a Redis server, but is another process
	if err := victim.launch(); !errors.Is(err, errPortTaken) {
		t.Errorf("start on a taken port: got %v, want %v", err, errPortTaken)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	if _, err := StartRedis("--no-such-option", "1"); err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("bad option: got %v, want what redis-server said", err)
	}
	t.Setenv("PATH", t.TempDir())
	for _, start := range []func() error{
		func() error { _, err := StartRedis(); return err },
		func() error { _, err := StartMemcached(); return err },
	} {
		if err := start(); err == nil || !strings.Contains(err.Error(), "apt-get install redis-server memcached") {
			t.Errorf("not installed: got %v, want the command that installs it", err)
		}
	}
}

// TestServerDiesWithProgram runs this test binary again, as a program that
// starts a server and is killed.
func TestServerDiesWithProgram(t *testing.T) {
	if os.Getenv("TESTSERVER_CHILD") != "" {
		s, err := StartRedis()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = os.Stdout.WriteString(s.Addr + "\n")
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithProgram$")
	cmd.Env = append(os.Environ(), "TESTSERVER_CHILD=1", "TMPDIR="+t.TempDir()) // the killed child can't clean up
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(string(buf[:n]))
	if _, err := ask(addr, "PING", "+PONG"); err != nil {
		t.Fatalf("%q: %v", addr, err)
	}
	_ = syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Wait()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(pollEvery) {
		if _, err := ask(addr, "PING", "+PONG"); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("server at %s outlived the program that started it", addr)
		}
	}
}
