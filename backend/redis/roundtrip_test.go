package redisbackend

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/breaker"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

var testScripts = []*script{newScript("a"), newScript("b")}

// jobs returns n jobs of one charge each.
func jobs(n int) []*job {
	all := make([]*job, n)
	for i := range all {
		all[i] = &job{script: testScripts[0], keys: make([]arg, 1), done: make(chan struct{}, 1)}
	}
	return all
}

func TestRepliesOfCallsAreSplit(t *testing.T) {
	foreign := "\x02"
	for _, test := range []struct {
		name  string
		reply string
		want  []string // of three decisions; nil if all fail
	}{
		{"as asked", "\x01\x00\x02ab\x00\x00\x00\x01\x00\x01c", []string{"\x01\x00\x02ab", "\x00\x00\x00", "\x01\x00\x01c"}},
		{"one that is no count", "\x01\x00\x02ab" + foreign + "\x01\x00\x01c", []string{"\x01\x00\x02ab", foreign, "\x01\x00\x01c"}},
		{"all of these", foreign + foreign + foreign, []string{foreign, foreign, foreign}},
		{"nothing", "", nil},
		{"short", "\x01\x00\x02ab\x00\x00\x00\x01\x00\x02c", nil},
		{"of two", "\x01\x00\x02ab\x00\x00\x00", nil},
		{"of four", "\x01\x00\x02ab\x00\x00\x00\x01\x00\x01c" + foreign, nil},
	} {
		cmd := redis.NewStringCmd(context.Background())
		cmd.SetVal(test.reply)
		c := call{jobs: jobs(3), cmds: []redis.Cmder{cmd}}
		c.deliver()
		var got []string
		failed := 0
		for _, j := range c.jobs {
			if <-j.done; j.err != nil {
				failed++
				continue
			}
			got = append(got, string(j.reply))
		}
		if !slices.Equal(got, test.want) || failed != 0 && failed != 3 {
			t.Errorf("%s: %q, and %d failed; want %q", test.name, got, failed, test.want)
		}
	}
}

func TestPlan(t *testing.T) {
	b := &batch{jobs: jobs(6)}
	for i, j := range b.jobs {
		j.work = 1
		j.partition = []byte{byte('a' + i%2)}
	}
	b.jobs[2].script, b.jobs[3].script = swapScript, nil // an exchange, and a read
	b.jobs[4].script, b.jobs[5].script = testScripts[1], testScripts[1]
	sizes := func(perSlot bool) string {
		b.plan(perSlot)
		var all []int
		for _, c := range b.calls {
			all = append(all, len(c.jobs))
		}
		return fmt.Sprint(all)
	}
	if got, want := sizes(false), "[1 1 2 2]"; got != want { // an exchange and a read, and two scripts
		t.Errorf("calls of %s decisions, want %s", got, want)
	}
	if got, want := sizes(true), "[1 1 1 1 1 1]"; got != want {
		t.Errorf("split by partition: calls of %s decisions, want %s", got, want)
	}
	b.jobs = jobs(2*quota.MaxWork + 8)
	for i, j := range b.jobs {
		j.work, j.buf = 1, arg{byte(i)}
	}
	if got, want := sizes(false), fmt.Sprintf("[%d %[1]d 8]", quota.MaxWork); got != want {
		t.Errorf("calls of %s decisions, want %s", got, want)
	}
	for i, j := range b.jobs {
		if int(j.buf[0]) != i {
			t.Fatalf("decision %d is in place %d", j.buf[0], i)
		}
		j.work = quota.MaxWork / 3
	}
	if got, want := sizes(false)[:6], "[3 3 3"; got != want {
		t.Errorf("calls of %s decisions, want %s", got, want)
	}
}

// Consecutive decisions of the same bytes are one argument, even when they are sent again.
func TestDecisionsOfTheSameBytes(t *testing.T) {
	b := &batch{jobs: jobs(6)}
	for i, j := range b.jobs {
		j.packed = []byte{1, "aabaaa"[i]}
	}
	swap := &job{script: swapScript, keys: make([]arg, 1), args: []arg{arg("9a"), arg("8b")}}
	packed := func(jobs []*job) string {
		var all []string
		for _, a := range b.argsOf(&call{jobs: jobs}, false)[3+len(jobs):] {
			all = append(all, fmt.Sprintf("%d%s", (*a.(*arg))[0]%'0', (*a.(*arg))[1:]))
		}
		return fmt.Sprint(all)
	}
	for range 2 {
		if got, want := packed(b.jobs), "[2a 1b 3a]"; got != want {
			t.Errorf("arguments %s, want %s", got, want)
		}
	}
	if got, want := packed(b.jobs[4:]), "[2a]"; got != want {
		t.Errorf("sent again: arguments %s, want %s", got, want)
	}
	if got, want := packed([]*job{swap}), "[9a 8b]"; got != want {
		t.Errorf("a swap: arguments %s, want %s", got, want)
	}
}

// A caller that leaves just as the breaker opens gets an error that says that nothing was
// sent.
func TestLeaveAsTheBreakerOpens(t *testing.T) {
	j := jobs(1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j.ctx = ctx
	j.stage.Store(failed)
	left := make(chan error)
	go func() { left <- j.leave(ctx.Err(), ctx.Err()) }()
	runtime.Gosched()
	j.finish(breaker.ErrOpen)
	if err := <-left; !errors.Is(err, breaker.ErrOpen) || j.abandoned {
		t.Errorf("%v, abandoned %v; want that the breaker is open", err, j.abandoned)
	}
}

// Decisions leave the queue in order, except decisions of callers that have left.
func TestBatchesTakeWhatWaitsInOrder(t *testing.T) {
	all := jobs(perBatch + 4)
	for _, j := range all {
		j.ctx, j.deadline = t.Context(), time.Now().Add(time.Hour)
	}
	b := batcher{waiting: slices.Clone(all)}
	all[1].stage.Store(abandoned)
	want := slices.Delete(all, 1, 2)
	for _, n := range []int{perBatch, 3} {
		out := new(batch)
		if !b.fill(out) || !slices.Equal(out.jobs, want[:n]) {
			t.Errorf("a batch of %d decisions, want the next %d", len(out.jobs), n)
		}
		want = want[n:]
	}
	if len(b.waiting) > 0 {
		t.Errorf("%d decisions wait, want none", len(b.waiting))
	}
}

// Allocations do not depend on the machine's speed. A decision that is sent alone allocates
// the throttler's three and the client's; the decisions of a full batch share the client's.
func TestAllocations(t *testing.T) {
	const long = 20 * time.Second // a busy machine does not reach it
	c, err := NewClient(&redis.UniversalOptions{
		Addrs: []string{testserver.Redis(t).Addr}, DialTimeout: long, ReadTimeout: long, WriteTimeout: long, PoolTimeout: long,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	b, err := New([]Shard{{Name: "a", Primary: c}}, &Options{Deadline: long})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	b.WithoutChecks() // they allocate too
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Hour}}}
	th := throttler.New(b, nil)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := th.Take(context.Background(), p.Charge("alice")); err != nil {
			t.Fatal(err)
		}
	}); n > inlineAllocs {
		t.Errorf("%v allocations of a decision alone, want at most %v", n, inlineAllocs)
	}

	charge := p.Charge("alice")
	charge.Partition = charge.Key
	out := new(batch)
	if n := testing.AllocsPerRun(100, func() {
		var all [perBatch]*job
		for i := range all {
			r := driver.NewRequest(at, charge)
			all[i] = b.newDecision(context.Background(), at, r.Charges(), nil, nil)
			all[i].deadline = time.Now().Add(time.Minute)
		}
		out.sentAt = time.Now()
		out.jobs = append(out.jobs, all[:]...)
		b.shards[0].batcher.run(out)
		for _, j := range all {
			if <-j.done; j.err != nil {
				t.Fatal(j.err)
			}
			j.free()
		}
	}); n/perBatch > sharedAllocs {
		t.Errorf("%v allocations of a decision in a full batch, want at most %v", n/perBatch, sharedAllocs)
	}
}
