package history

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/chaos/internal/wire"
	"github.com/weir-go/weir/throttler/driver"
)

var lasts = flag.Duration("lasts", 2*time.Second, "how long each history is")

func TestMain(m *testing.M) {
	Main()
	goleak.VerifyTestMain(m)
}

const (
	processes = 3
	clients   = 4
)

// The history of several processes is linearizable, although processes are killed, connections
// cut and scripts forgotten.
func TestRedis(t *testing.T) {
	server := testserver.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	check(t, "redis", server.Addr, []func(){
		func() { admin.ScriptFlush(t.Context()) },
		func() { admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes") },
	})
}

func TestMemcached(t *testing.T) {
	check(t, "memcached", testserver.Memcached(t).Addr, nil)
}

// check runs worker processes on the server at addr, harms them and their connections, also by
// each of other, and checks their history.
func check(t *testing.T, store, addr string, other []func()) {
	t.Parallel()
	random := testseed.Rand(t, 0)
	link, err := wire.NewLink(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	dir := t.TempDir()
	if kept := os.Getenv("WEIR_CHAOS_DIR"); kept != "" {
		dir = kept
	}
	end := time.Now().Add(*lasts)
	crew := crew{dir: dir, work: Work{
		Store: store, Addr: link.Addr, Clients: clients, Cells: 3, NewCells: 150 * time.Millisecond,
		Every: 3 * time.Millisecond, Deadline: 50 * time.Millisecond,
	}}
	for range processes {
		crew.start(t, random.Uint64(), time.Until(end))
	}
	kills, cuts := 0, 0
	for time.Now().Before(end) {
		time.Sleep(time.Duration(50+random.IntN(150)) * time.Millisecond)
		switch n := random.IntN(5); {
		case n == 0:
			crew.kill(random.IntN(processes))
			crew.start(t, random.Uint64(), time.Until(end))
			kills++
		case n == 1 && len(other) > 0:
			other[random.IntN(len(other))]()
		default:
			link.Inject([]wire.Toxic{
				{Type: "limit_data", Toxicity: 0.5, Attributes: wire.Attributes{"bytes": random.IntN(4000)}},
				{Type: "limit_data", Toxicity: 0.5, Upstream: true, Attributes: wire.Attributes{"bytes": random.IntN(4000)}},
				{Type: "reset_peer", Toxicity: 0.5, Attributes: wire.Attributes{"timeout": random.IntN(5)}},
				{Type: "timeout", Toxicity: 0.3, Attributes: wire.Attributes{"timeout": 20}},
				{Type: "slicer", Attributes: wire.Attributes{"average_size": 3, "size_variation": 2, "delay": 10}},
			}[random.IntN(5)])
			time.Sleep(time.Duration(5+random.IntN(20)) * time.Millisecond)
			link.Heal()
			cuts++
		}
	}
	crew.wait(t)
	ops, err := Read(crew.records...)
	if err != nil {
		t.Fatal(err)
	}
	fates := make(map[string]int)
	for _, o := range ops {
		fates[string(o.Return.Fate)+" "+string(o.Call.Op)]++
	}
	t.Logf("%d operations of %d processes, %d of them killed, %d faults of connections: %v", len(ops), len(crew.records), kills, cuts, fates)
	if err := Check(ops, os.TempDir(), 2*time.Minute); err != nil {
		t.Error(err)
	}
	if fates["answered take"] == 0 || fates["answered settle"] == 0 || fates["answered peek"] == 0 {
		t.Errorf("there was nothing of a kind to check")
	}
}

// crew is the worker processes of a test.
type crew struct {
	dir     string
	work    Work
	running [processes]*exec.Cmd
	records []string

	said sync.Map // output of each process
}

// start starts a worker in place of one that is not running.
func (c *crew) start(t *testing.T, seed uint64, lasts time.Duration) {
	t.Helper()
	w := c.work
	w.Process, w.Seed, w.Lasts = len(c.records), seed, lasts
	w.Record = filepath.Join(c.dir, fmt.Sprint(w.Store, w.Process))
	c.records = append(c.records, w.Record)
	recorder, err := NewRecorder(0, w.Record) // it may be killed before it has created the file
	if err != nil {
		t.Fatal(err)
	}
	_ = recorder.Close()
	said := new(strings.Builder)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), w.Environ()), said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.said.Store(cmd, said)
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for i, running := range c.running {
		if running == nil {
			c.running[i] = cmd
			return
		}
	}
	panic("all run")
}

func (c *crew) kill(i int) {
	_ = c.running[i].Process.Kill()
	_ = c.running[i].Wait()
	c.running[i] = nil
}

func (c *crew) wait(t *testing.T) {
	t.Helper()
	for _, cmd := range c.running {
		if err := cmd.Wait(); err != nil {
			said, _ := c.said.Load(cmd)
			t.Errorf("a worker: %v\n%s", err, said)
		}
	}
}

// A history with one changed answer is not linearizable, and the check detects it.
func TestCheckSeesWrongAnswers(t *testing.T) {
	at := int64(1_900_000_000_000)
	take := func(id int, call, back int64, used int64, allowed bool) *Operation {
		o := &Operation{
			Call:   Record{ID: id, At: call, Op: Take, Now: at, Partition: "x", Charges: []Charge{{"fixed", "x", 6}}},
			Return: Record{At: back, Fate: Answered, Allowed: allowed},
		}
		result := driver.Result{Used: used, ResetAt: at + 300, Mark: driver.Mark{At: at + 300}}
		if !allowed {
			result.RetryAt, result.Mark = at+300, driver.Mark{}
		}
		o.Return.Results = []driver.Result{result}
		return o
	}
	unknown := func(id int, call int64) *Operation {
		o := take(id, call, 0, 0, true)
		o.Return = Record{At: 1 << 62, Fate: Unknown}
		return o
	}
	for _, test := range []struct {
		name string
		ops  []*Operation
		good bool
	}{
		{"in order", []*Operation{take(1, 1, 2, 6, true), take(2, 3, 4, 12, true), take(3, 5, 6, 12, false)}, true},
		{"charged twice", []*Operation{take(1, 1, 2, 6, true), take(2, 3, 4, 6, true)}, false},
		{"not charged", []*Operation{take(1, 1, 2, 6, true), take(2, 3, 4, 12, true), take(3, 5, 6, 12, true)}, false},
		{"late, seen early", []*Operation{take(1, 1, 2, 12, true), take(2, 3, 4, 6, true)}, false},
		{"at the same time", []*Operation{take(1, 1, 4, 12, true), take(2, 2, 3, 6, true)}, true},
		{"unknown, and it was charged", []*Operation{unknown(1, 1), take(2, 3, 4, 12, true)}, true},
		{"unknown, and it was not charged", []*Operation{unknown(1, 1), take(2, 3, 4, 6, true)}, true},
		{"unknown, and it was charged twice", []*Operation{unknown(1, 1), take(2, 3, 4, 12, false)}, false},
	} {
		err := Check(test.ops, t.TempDir(), time.Minute)
		if good := err == nil; good != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
