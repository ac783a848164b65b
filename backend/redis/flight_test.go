package redisbackend

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testserver"
	"github.com/weir-go/weir/throttler"
)

// jobs returns n jobs about one limit each.
func jobs(n int) []*job {
	all := make([]*job, n)
	for i := range all {
		all[i] = &job{size: 4, done: make(chan struct{}, 1)}
	}
	return all
}

func TestRepliesOfCallsAreCut(t *testing.T) {
	for _, test := range []struct {
		name  string
		reply []int64
		want  string // of three decisions; empty if all fail
	}{
		{"as asked", []int64{1, 2, 3, 4, 0, 6, 7, 8, 1, 9, 9, 9}, "[1 2 3 4] [0 6 7 8] [1 9 9 9]"},
		{"one that is no count", []int64{1, 2, 3, 4, notACount, 1, 9, 9, 9}, "[1 2 3 4] [3] [1 9 9 9]"},
		{"all of these", []int64{notACount, notACount, notACount}, "[3] [3] [3]"},
		{"nothing", nil, ""},
		{"short", []int64{1, 2, 3, 4, 0, 6, 7, 8, 1, 9, 9}, ""},
		{"of two", []int64{1, 2, 3, 4, 0, 6, 7, 8}, ""},
		{"of four", []int64{1, 2, 3, 4, 0, 6, 7, 8, 1, 9, 9, 9, notACount}, ""},
	} {
		c := call{jobs: jobs(3)}
		c.deliver(test.reply)
		got, failed := "", 0
		for _, j := range c.jobs {
			<-j.done
			if j.err != nil {
				failed++
				continue
			}
			if got != "" {
				got += " "
			}
			got += fmt.Sprint(j.reply)
		}
		if got != test.want || failed != 0 && failed != 3 {
			t.Errorf("%s: %q, and %d failed; want %q", test.name, got, failed, test.want)
		}
	}
}

func TestPlan(t *testing.T) {
	f := &flight{jobs: jobs(6)}
	for i, j := range f.jobs {
		j.work = 1
		j.partition = []byte{byte('a' + i%2)}
	}
	f.jobs[2].kind, f.jobs[3].kind = lone, lone
	f.jobs[4].kind, f.jobs[5].kind = mixed, mixed
	sizes := func(splits bool) string {
		f.plan(splits)
		var all []int
		for _, c := range f.calls {
			all = append(all, len(c.jobs))
		}
		return fmt.Sprint(all)
	}
	if got, want := sizes(false), "[2 2 1 1]"; got != want { // simple, mixed, lone
		t.Errorf("calls of %s decisions, want %s", got, want)
	}
	if got, want := sizes(true), "[1 1 1 1 1 1]"; got != want {
		t.Errorf("split by partition: calls of %s decisions, want %s", got, want)
	}
	f.jobs = jobs(40)
	for i, j := range f.jobs {
		j.work, j.size = 1, i
	}
	if got, want := sizes(false), "[16 16 8]"; got != want {
		t.Errorf("calls of %s decisions, want %s", got, want)
	}
	for i, j := range f.jobs {
		if j.size != i {
			t.Fatalf("decision %d is in place %d", j.size, i)
		}
		j.work = throttler.MaxWork / 3
	}
	if got, want := sizes(false)[:6], "[3 3 3"; got != want {
		t.Errorf("calls of %s decisions, want %s", got, want)
	}
}

func TestQueue(t *testing.T) {
	var q queue
	all := jobs(5)
	for _, j := range all {
		q.push(j)
	}
	for _, i := range []int{2, 0, 4} { // from the middle, the front, the back
		q.remove(all[i])
	}
	if q.len != 2 || q.first != all[1] || q.first.next != all[3] || q.last != all[3] || all[3].previous != all[1] {
		t.Errorf("the queue is %+v, want decisions 1 and 3", q)
	}
	q.remove(all[1])
	q.remove(all[3])
	if q.len != 0 || q.first != nil || q.last != nil {
		t.Errorf("the queue is %+v, want nothing", q)
	}
}

// Allocations do not drift with the machine. Those of a decision that travels alone
// are the throttler's, three, and the client's; those of a full flight are divided by
// 256.
func TestAllocations(t *testing.T) {
	c := redis.NewClient(ClientOptions(testserver.Redis(t).Addr))
	t.Cleanup(func() { _ = c.Close() })
	b, err := New([]Shard{{Name: "a", Primary: c}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 1 << 40, Window: time.Hour}}}
	th := throttler.New(b, nil)
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := th.Take(context.Background(), p.Charge("alice")); err != nil {
			t.Fatal(err)
		}
	}); n > aloneAllocs {
		t.Errorf("%v allocations of a decision alone, want at most %v", n, aloneAllocs)
	}

	charge := p.Charge("alice")
	charge.Partition = charge.Key
	f := new(flight)
	if n := testing.AllocsPerRun(100, func() {
		var all [perFlight]*job
		for i := range all {
			all[i] = b.newTake(context.Background(), throttler.Request{Now: now, Charges: []throttler.Charge{charge}})
		}
		f.jobs = append(f.jobs, all[:]...)
		f.run(b.shards[0].line)
		for _, j := range all {
			if <-j.done; j.err != nil {
				t.Fatal(j.err)
			}
			j.free()
		}
	}); n/perFlight > sharedAllocs {
		t.Errorf("%v allocations of a decision in a full flight, want at most %v", n/perFlight, sharedAllocs)
	}
}
