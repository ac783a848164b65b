package division_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/shares/internal/division"
	"github.com/weir-go/weir/throttler"
)

// network passes messages to members by their names.
type network struct {
	mu      sync.Mutex
	members map[string]*division.Member
}

func (n *network) Send(ctx context.Context, to string, message []byte) ([]byte, error) {
	n.mu.Lock()
	m := n.members[to]
	n.mu.Unlock()
	if m == nil {
		return nil, errors.New("no such member")
	}
	return m.Receive(ctx, message)
}

// held records a member's shares.
type held struct {
	mu      sync.Mutex
	last    division.Shares
	changed chan struct{}
}

func (h *held) apply(s division.Shares) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = s
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *held) shares() division.Shares {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// Three members on a manual clock divide a quota by demand. One leaves, and a list without it
// gives the others the whole quota.
func TestMembers(t *testing.T) {
	at := clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	net := &network{members: make(map[string]*division.Member)}
	names := []string{"a", "b", "c"}
	all := make(map[string]*held)
	stop := make(map[string]func())
	lists := make(chan string, 10)
	for _, name := range names {
		h := &held{changed: make(chan struct{}, 1)}
		all[name] = h
		demand := func(time.Time, int) division.Demand {
			if name == "a" {
				return division.Demand{Units: 100}
			}
			return division.Demand{}
		}
		m, err := division.New(name, division.List{Epoch: 1, Members: names},
			[]division.Quota{{Name: "core", Total: 300, Demand: demand}}, net, h.apply, &division.Options{
				Clock:       at,
				ListChanged: func(l division.List) { lists <- fmt.Sprint(name, " has ", l) },
			})
		if err != nil {
			t.Fatal(err)
		}
		if s := h.shares(); s.Valid || s.Quotas[0].Units != 0 {
			t.Errorf("%s starts with %+v; it must hold nothing", name, s)
		}
		net.mu.Lock()
		net.members[name] = m
		net.mu.Unlock()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			m.Run(ctx)
		}()
		stop[name] = func() { cancel(); <-ended }
	}
	defer func() {
		for _, end := range stop {
			end()
		}
	}()

	// until moves the clock in small steps until the condition holds.
	until := func(what string, condition func() bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for !condition() {
			if time.Now().After(deadline) {
				for _, name := range names {
					t.Logf("%s: %+v", name, net.members[name].Status())
				}
				t.Fatalf("%s: not within a minute", what)
			}
			at.Advance(20 * time.Millisecond)
			time.Sleep(time.Millisecond) // the others' turn; any pace will do
		}
	}
	units := func(name string) int64 { return all[name].shares().Quotas[0].Units }
	until("a has nearly all", func() bool { return units("a") == 290 && units("b") == 5 && units("c") == 5 })

	s := net.members["b"].Status()
	if s.Self != "b" || s.Epoch != 1 || !s.Valid || s.Round == 0 || s.Quotas[0].Units != 5 {
		t.Errorf("Status = %+v", s)
	}

	stop["c"]()
	if s := all["c"].shares(); s.Valid || s.Quotas[0].Units != 0 {
		t.Errorf("after Run, c holds %+v; it must hold nothing", s)
	}
	if _, err := net.members["c"].Receive(context.Background(), nil); err == nil {
		t.Error("after Run, Receive has no error")
	}
	until("c is silent", func() bool {
		s := net.members["a"].Status()
		return slices.Equal(s.Silent, []string{"c"}) && s.Quotas[0].Units == 290
	})
	if err := net.members["b"].SetList(division.List{Epoch: 2, Members: []string{"b", "a"}}); err != nil {
		t.Fatal(err)
	}
	until("a and b have all", func() bool { return units("a")+units("b") == 300 && units("a") == 293 })
	if s := net.members["a"].Status(); s.Epoch != 2 {
		t.Errorf("a has the list %d; b was given 2", s.Epoch)
	}
	if b, a := <-lists, <-lists; b != "b has {2 [a b]}" || a != "a has {2 [a b]}" {
		t.Errorf("ListChanged says %q and %q; want the list at b and then at a", b, a)
	}
	if err := net.members["a"].SetList(division.List{Epoch: 2, Members: []string{"b"}}); !errors.Is(err, throttler.ErrInvalid) {
		t.Errorf("a second list 2: %v", err)
	}
}

// many returns the names of n members.
func many(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint("m", i))
	}
	return names
}

func TestNewRefuses(t *testing.T) {
	list := division.List{Epoch: 1, Members: []string{"a", "b"}}
	quotas := []division.Quota{{Name: "core", Total: 10}}
	for name, c := range map[string]struct {
		self   string
		list   division.List
		quotas []division.Quota
		o      division.Options
	}{
		"Epoch is 0":                 {"a", division.List{Members: list.Members}, quotas, division.Options{}},
		"Members has 0":              {"a", division.List{Epoch: 1}, quotas, division.Options{}},
		`Members[1] is "a" a second`: {"a", division.List{Epoch: 1, Members: []string{"a", "a"}}, quotas, division.Options{}},
		"Members[0] has 0 bytes":     {"a", division.List{Epoch: 1, Members: []string{""}}, quotas, division.Options{}},
		"self has 0 bytes":           {"", list, quotas, division.Options{}},
		"quotas has 0":               {"a", list, nil, division.Options{}},
		"Refresh is 1ms":             {"a", list, quotas, division.Options{Refresh: time.Millisecond}},
		"Keys of 64 need messages":   {"a", division.List{Epoch: 1, Members: many(1024)}, make([]division.Quota, 10), division.Options{Keys: 64}},
		"Keys is 65":                 {"a", list, quotas, division.Options{Keys: 65}},
	} {
		_, err := division.New(c.self, c.list, c.quotas, &network{}, func(division.Shares) {}, &c.o)
		if !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}
