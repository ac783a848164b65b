package division

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// messages returns messages of a fleet at work.
func messages(t testing.TB) [][]byte {
	var all [][]byte
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}, {Name: "search", Total: 7}}, Options{})
	f.demand = func(name string, _ int, _ time.Time, _ int) Demand {
		return Demand{Units: 10, Largest: 5, Keys: []KeyDemand{{7, 5}, {8, 3}}}
	}
	list := List{1, names(3)}
	f.sent = func(_ string, b []byte) { all = append(all, b) }
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(3 * time.Second)
	return all
}

func TestMessages(t *testing.T) {
	kinds := make(map[byte]int)
	for _, b := range messages(t) {
		m, err := decode(b, List{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		kinds[m.kind]++
		again, err := decode(m.encode(), m.list, m.list.append(nil))
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v was encoded and decoded to %+v, %v", m, again, err)
		}
	}
	if kinds[kindCollect] == 0 || kinds[kindGossip] == 0 {
		t.Errorf("messages by kind: %v", kinds)
	}
}

// Messages that are cut off or garbled are errors, or are messages; none does harm to
// the member that receives it, except by what a member could say.
func FuzzReceive(f *testing.F) {
	for _, b := range messages(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decode(b, List{}, nil); err != nil {
			return
		}
		fleet := newFleet(t, 2, []Quota{{Name: "core", Total: 300}, {Name: "search", Total: 7}}, Options{})
		list := List{1, names(3)}
		for _, name := range list.Members {
			fleet.start(name, list)
		}
		fleet.run(2 * time.Second)
		for range 2 {
			reply, calls, err := fleet.members["m000"].core.receive(fleet.now, b)
			if err == nil {
				if _, err := decode(reply, List{}, nil); err != nil {
					t.Errorf("the reply: %v", err)
				}
			}
			for _, k := range calls {
				fleet.members["m000"].core.answered(fleet.now, k, b, nil)
			}
		}
	})
}

func TestGarbled(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, b := range messages(t) {
		for n := range len(b) {
			if _, err := decode(b[:n], List{}, nil); err == nil {
				t.Fatalf("%d of %d bytes are a message", n, len(b))
			}
		}
		for range 200 {
			garbled := append([]byte(nil), b...)
			for range 1 + random.IntN(3) {
				garbled[random.IntN(len(b))] = byte(random.Uint32())
			}
			_, _ = decode(garbled, List{}, nil) // must not panic
		}
	}
	if _, err := decode(make([]byte, MaxMessage+1), List{}, nil); err == nil {
		t.Error("a message above MaxMessage has no error")
	}
}

// With as many quotas and keys as New accepts, rounds are complete, and no message is
// above MaxMessage.
func TestLargestMessages(t *testing.T) {
	const quotas = 64
	all := make([]Quota, quotas)
	for i := range all {
		all[i] = Quota{Name: fmt.Sprint("quota ", i), Total: maxTotal}
	}
	f := newFleet(t, 1, all, Options{Keys: MaxKeys})
	list := List{1, names(2)}
	f.demand = func(name string, _ int, now time.Time, keys int) Demand {
		d := Demand{Units: 1e6, Largest: 10}
		for k := range 4 * keys { // others in each round, and too many
			d.Keys = append(d.Keys, KeyDemand{uint64(1 + k + 1000*int(now.Sub(t0)/time.Second)), 1000})
		}
		return d
	}
	largest, items, vectors := 0, 0, 0
	f.sent = func(_ string, b []byte) {
		largest = max(largest, len(b))
		m, err := decode(b, List{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m.ref != nil {
			vectors = max(vectors, len(m.ref.vectors))
		}
		if m.round != nil {
			items = max(items, len(m.round.reports[0].items))
		}
	}
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(8 * time.Second)
	p := f.members["m000"]
	t.Logf("%d bytes, %d items, %d vectors, %d rounds", largest, items, vectors, f.rounds)
	if !p.core.complete || f.rounds < 6 {
		t.Errorf("after 8 refreshes, %d rounds; complete: %v", f.rounds, p.core.complete)
	}
	if largest > MaxMessage || items > quotas*(1+4*MaxKeys) || vectors > quotas*(1+2*MaxKeys) {
		t.Errorf("a message of %d bytes, %d items of a member, %d vectors", largest, items, vectors)
	}
	if items <= 4096 {
		t.Errorf("the most items of a member are %d; the test wants more than 4096", items)
	}
	long := List{2, names(5)}
	if err := p.core.fits(long); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a list that is too long for messages: %v", err)
	}
}
