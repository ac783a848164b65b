package relay

import (
	"log/slog"
	"testing"

	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

type counter struct {
	observe.Nothing
	checked int
}

func (c *counter) Checked(observe.Checked) { c.checked++ }

// uncomparable is an Observer that can't be compared.
type uncomparable struct {
	observe.Nothing
	counters []*counter
}

func (u uncomparable) Checked(observe.Checked) { u.counters[0].checked++ }

func TestRelay(t *testing.T) {
	quiet := weirlog.New(slog.New(slog.DiscardHandler), nil)
	a, b, c := new(counter), new(counter), new(counter)
	r := New(nil)
	r.Add(nil)
	r.Add(observe.All(a, quiet))
	r.Add(a)
	r.Add(observe.All(b, a))
	r.Add(uncomparable{counters: []*counter{c}})
	r.Checked(observe.Checked{})
	fixed := New(observe.All(b, quiet))
	fixed.Add(a)
	fixed.Checked(observe.Checked{})
	if a.checked != 1 || b.checked != 2 || c.checked != 1 {
		t.Errorf("events: %d, %d and %d, want 1, 2 and 1", a.checked, b.checked, c.checked)
	}
}
