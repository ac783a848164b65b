// Package regions runs processes in two data centres, with a slow link between these that is cut.
package regions

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/chaos/internal/wire"
)

const perRegion = 3 // processes

// The phases, in seconds. Counts settle in the time between them.
const (
	whole, cut, mended, after, end = 4, 10, 18, 21, 27
	silent                         = cut + 2 // breakers are open
)

// slow is the link: 40 ms each way. dead lets nothing through, and says nothing.
var (
	slow = []wire.Toxic{{Type: "latency", Attributes: wire.Attributes{"latency": 40}}, {Type: "latency", Upstream: true, Attributes: wire.Attributes{"latency": 40}}}
	dead = []wire.Toxic{{Type: "timeout"}, {Type: "timeout", Upstream: true}}
)

// Two data centres share quotas of 100 a second, of which each asks for 100. The store of the exact
// and the leased counts is in the east. The link between the data centres is cut for eight seconds.
func TestTwoDataCentres(t *testing.T) {
	t.Parallel() // it waits most of the time
	east, west := testserver.Redis(t), testserver.Redis(t)
	var links [2]*wire.Link // to the east, from the west; and to the west, from the east
	for i, server := range []string{east.Addr, west.Addr} {
		link, err := wire.NewLink(server)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(link.Close)
		link.Inject(slow...)
		links[i] = link
	}
	begin := time.Now().Truncate(time.Second).Add(3 * time.Second)
	var workers []*exec.Cmd
	var outputs []*json.Decoder
	for i := range 2 * perRegion {
		j := job{East: east.Addr, West: links[1].Addr, Begin: begin, Seconds: end, Rate: float64(quota) / perRegion, Process: uint64(i)}
		if i >= perRegion {
			j.East, j.West = links[0].Addr, west.Addr
		}
		cmd, out := testserver.Self(t, "regions-worker", j)
		workers, outputs = append(workers, cmd), append(outputs, json.NewDecoder(out))
	}
	for at, change := range map[int]func(l *wire.Link){
		cut:    func(l *wire.Link) { l.Inject(dead...) },
		mended: func(l *wire.Link) { l.Heal(); l.Inject(slow...) },
	} {
		timer := time.AfterFunc(time.Until(begin.Add(time.Duration(at)*time.Second)), func() {
			for _, l := range links {
				change(l)
			}
		})
		defer timer.Stop()
	}
	var sums [2][levels][end]second
	late := time.Duration(0)
	for i, out := range outputs {
		var r report
		if err := out.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if err := workers[i].Wait(); err != nil {
			t.Error(err)
		}
		late = max(late, r.Late)
		for level := range r.Seconds {
			for k, s := range r.Seconds[level] {
				sum := &sums[i/perRegion][level][k]
				sum.Admitted, sum.Refused, sum.Failed, sum.Degraded = sum.Admitted+s.Admitted, sum.Refused+s.Refused, sum.Failed+s.Failed, sum.Degraded+s.Degraded
			}
		}
	}
	table := new(strings.Builder)
	for level, name := range names {
		fmt.Fprintf(table, "\n%s\n", name)
		for _, p := range phases {
			fmt.Fprintf(table, "  %-9s %3.0f a second of %d", p.name, p.of(&sums, level, 0).admitted+p.of(&sums, level, 1).admitted, quota)
			for side, where := range []string{"east", "west"} {
				m := p.of(&sums, level, side)
				fmt.Fprintf(table, "; %s: %3.0f, %3.0f refused, %3.0f failed", where, m.admitted, m.refused, m.failed)
			}
			fmt.Fprintln(table)
		}
	}
	t.Logf("a request came at most %v late%s", late, table)

	// What never depends on the time that a process has.
	for level := exact; level <= leasing; level++ {
		for k := range end {
			if n := sums[0][level][k].Admitted + sums[1][level][k].Admitted; n > quota {
				t.Errorf("%s: %d were admitted in second %d, of a quota of %d", names[level], n, k, quota)
			}
		}
	}
	for level := oneRoot; level < levels; level++ {
		for side := range sums {
			if m := connected.of(&sums, level, side); m.failed > 0 {
				t.Errorf("%s: %.0f a second failed; synced decisions wait for nothing", names[level], m.failed)
			}
		}
	}
	if late > 200*time.Millisecond {
		t.Log("a process was late: how much was admitted is not judged")
		return
	}
	for _, b := range bounds {
		n := 0.0
		for side := range sums {
			if b.side == both || b.side == side {
				n += b.phase.of(&sums, b.level, side).admitted
			}
		}
		if n < b.least || n > b.greatest {
			t.Errorf("%s, %s: %s admitted %.0f a second; want from %.0f to %.0f", names[b.level], b.phase.name, [...]string{"the east", "the west", "both"}[b.side], n, b.least, b.greatest)
		}
	}
	if d := dark.of(&sums, oneRoot, 1); d.degraded == 0 {
		t.Errorf("%s: no decision of the west was Degraded in the cut", names[oneRoot])
	}
}

// phase is a time from one second to another.
type phase struct {
	name     string
	from, to int
}

var (
	connected = phase{"connected", whole, cut}
	apart     = phase{"cut", cut, mended}
	dark      = phase{"cut, from the third second on", silent, mended}
	again     = phase{"again", after, end}
	phases    = []phase{connected, apart, again}
)

// mean contains answers a second.
type mean struct{ admitted, refused, failed, degraded float64 }

func (p phase) of(sums *[2][levels][end]second, level, side int) (m mean) {
	for _, s := range sums[side][level][p.from:p.to] {
		m.admitted, m.refused, m.failed, m.degraded = m.admitted+float64(s.Admitted), m.refused+float64(s.Refused), m.failed+float64(s.Failed), m.degraded+float64(s.Degraded)
	}
	n := float64(p.to - p.from)
	return mean{m.admitted / n, m.refused / n, m.failed / n, m.degraded / n}
}

const both = 2 // sides

// bounds are wide: the machine may be busy.
var bounds = []struct {
	level           int
	phase           phase
	side            int
	least, greatest float64
}{
	{exact, connected, both, 60, quota},
	{exact, dark, 0, 60, quota},
	{exact, dark, 1, 0, 0},
	{exact, again, both, 60, quota},
	{leasing, connected, both, 60, quota},
	{leasing, dark, 0, 60, quota},
	{leasing, dark, 1, 0, 0.15 * quota},
	{leasing, again, both, 60, quota},
	{oneRoot, connected, both, 75, 1.25 * quota},
	{oneRoot, apart, 0, 60, 1.3 * quota},
	{oneRoot, apart, 1, 20, 0.9 * quota},
	{oneRoot, again, both, 75, 1.25 * quota},
	{rootsBoth, connected, both, 75, 1.25 * quota},
	{rootsBoth, apart, 0, 60, 1.3 * quota},
	{rootsBoth, apart, 1, 60, 1.3 * quota},
	{rootsBoth, again, both, 75, 1.25 * quota},
}
