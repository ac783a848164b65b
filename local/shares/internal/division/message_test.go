package division

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

var threeMembers = List{1, names(3)}

// messages returns messages of a fleet at work, and replies.
func messages(t testing.TB) [][]byte {
	var all [][]byte
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}, {Name: "search", Total: 7}}, Options{})
	f.demand = func(name string, _ int, _ time.Time, _ int) Demand {
		return Demand{Units: 10, Keys: []KeyDemand{{7, 5}, {8, 3}}}
	}
	f.sent = func(_ string, b []byte) { all = append(all, b) }
	f.replied = func(b []byte) { all = append(all, b) }
	for _, name := range threeMembers.Members {
		f.start(name, threeMembers)
	}
	f.run(1500 * time.Millisecond)
	f.cut["m002"] = 1
	f.run(6 * time.Second)
	return all
}

func TestMessages(t *testing.T) {
	seen := make(map[string]int)
	for _, b := range messages(t) {
		m, err := decode(b, &threeMembers)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decode(m.encode(), nil)
		if err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v was encoded and decoded to %+v, %v", m, again, err)
		}
		seen[fmt.Sprintf("division %v, report %v, silent %v", m.Division != nil, m.Report != nil, m.Failed.Silent)]++
	}
	if len(seen) != 5 {
		t.Errorf("the messages are %v; want all kinds", seen)
	}
}

// A field out of bounds is an error, whatever the rest of the message is.
func TestBounds(t *testing.T) {
	var whole *message // with all parts
	for _, b := range messages(t) {
		m, err := decode(b, &threeMembers)
		switch {
		case err != nil:
			t.Fatal(err)
		case m.Division != nil && whole == nil:
			whole = m
		case whole != nil && m.Report != nil:
			whole.Report = m.Report
		}
	}
	if whole == nil || whole.Report == nil {
		t.Fatal("no message has all parts")
	}
	text := whole.encode()
	long := strings.Repeat("x", maxName+1)
	for what, change := range map[string]func(m *message){
		"the sender":           func(m *message) { m.From.Name = "" },
		"the sender's name":    func(m *message) { m.From.Name = long },
		"no list":              func(m *message) { m.List = nil },
		"the epoch":            func(m *message) { m.List.Epoch = 0 },
		"a long name":          func(m *message) { m.List.Members[2] = long },
		"a name twice":         func(m *message) { m.List.Members[2] = m.List.Members[1] },
		"names out of order":   func(m *message) { slices.Reverse(m.List.Members) },
		"too many names":       func(m *message) { m.List.Members = names(MaxMembers + 1) },
		"the round":            func(m *message) { m.Joined.Number = 1<<63 - 1 },
		"another division":     func(m *message) { m.Taken.Draw++ },
		"a silent stranger":    func(m *message) { m.Failed.Silent = []string{"x"} },
		"a huge total":         func(m *message) { m.Report.Items[0].Total = maxTotal + 1 },
		"a total of zero":      func(m *message) { m.Report.Items[0].Total = 0 },
		"the minimum":          func(m *message) { m.Report.Items[0].Low = m.Report.Items[0].Total + 1 },
		"a minimum below zero": func(m *message) { m.Report.Items[0].Low = -1 },
		"a demand":             func(m *message) { m.Report.Items[0].Demand = -1 },
		"a demand for a key":   func(m *message) { m.Report.Items[0].Keys[0].Units = -1 },
		"key zero":             func(m *message) { m.Report.Items[0].Keys[0].Key = 0 },
		"too many keys":        func(m *message) { m.Report.Items[0].Keys = make([]keyDemand, 2*MaxKeys+1) },
		"too many items":       func(m *message) { m.Report.Items = make([]item, MaxQuotas+1) },
		"too many vectors":     func(m *message) { m.Division.Vectors = make([]vector, maxVectors+1) },
		"vectors out of order": func(m *message) { slices.Reverse(m.Division.Vectors) },
		"members out of order": func(m *message) { slices.Reverse(m.Division.Members) },
		"too many members":     func(m *message) { m.Division.Members = append(m.Division.Members, m.Division.Members...) },
		"too few members":      func(m *message) { m.Division.Members = m.Division.Members[1:] },
		"a stranger":           func(m *message) { m.Division.Members[1].Name = "m0015" },
		"too few shares":       func(m *message) { m.Division.Vectors[0].Shares = m.Division.Vectors[0].Shares[1:] },
		"too little demand":    func(m *message) { m.Division.Vectors[0].Demand = m.Division.Vectors[0].Demand[1:] },
		"a share below zero":   func(m *message) { m.Division.Vectors[0].Shares[0] = -1 },
		"shares above a total": func(m *message) { m.Division.Vectors[0].Total = 1 },
		"a vector's total":     func(m *message) { m.Division.Vectors[0].Total = maxTotal + 1 },
	} {
		m, err := decode(text, nil)
		if err != nil {
			t.Fatal(err)
		}
		change(m)
		if _, err := decode(m.encode(), nil); !errors.Is(err, errMessage) {
			t.Errorf("with %s changed, the error is %v", what, err)
		}
	}
	if _, err := decode(bytes.Replace(text, []byte(`"v":4`), []byte(`"v":3`), 1), nil); !errors.Is(err, errMessage) {
		t.Errorf("of another version, the error is %v", err)
	}
	if _, err := decode([]byte(`{"v":4,"division":{"vectors":[`+strings.Repeat("{},", 1000)+`{}]}}`), nil); !errors.Is(err, errMessage) || !strings.Contains(err.Error(), "objects") {
		t.Errorf("of a thousand objects in some thousand bytes, the error is %v", err)
	}
}

// Messages that are cut off or garbled are errors, or valid messages. They do no more harm to
// their receiver than a member's message could.
func FuzzReceive(f *testing.F) {
	for _, b := range messages(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decode(b, &threeMembers); err != nil {
			return
		}
		fleet := newFleet(t, 2, []Quota{{Name: "core", Total: 300}, {Name: "search", Total: 7}}, Options{})
		list := List{1, names(3)}
		for _, name := range list.Members {
			fleet.start(name, list)
		}
		fleet.run(2 * time.Second)
		for range 2 {
			c := fleet.members["m000"].core
			reply, err := c.receive(fleet.now, b)
			if err == nil {
				if _, err := decode(reply, &c.list); err != nil {
					t.Errorf("the reply: %v", err)
				}
			}
			if c.list.contains("m000") {
				c.start(fleet.now)
			}
			for _, k := range c.proceed(fleet.now) {
				c.answered(fleet.now, k, b, nil)
			}
		}
	})
}

func TestSequentialGarbled(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, b := range messages(t) {
		for n := range len(b) {
			if _, err := decode(b[:n], &threeMembers); err == nil {
				t.Fatalf("%d of %d bytes are a message", n, len(b))
			}
		}
		for range 200 {
			garbled := append([]byte(nil), b...)
			for range 1 + random.IntN(3) {
				garbled[random.IntN(len(b))] = byte(random.Uint32())
			}
			_, _ = decode(garbled, &threeMembers) // must not panic
		}
	}
	if _, err := decode(make([]byte, MaxMessage+1), nil); err == nil {
		t.Error("a message above MaxMessage has no error")
	}
}

// With as many quotas and keys as New accepts, rounds are complete, and no message is longer
// than MaxMessage.
func TestSequentialLargestMessages(t *testing.T) {
	const quotas = 64
	all := make([]Quota, quotas)
	for i := range all {
		all[i] = Quota{Name: fmt.Sprint("quota ", i), Total: maxTotal}
	}
	f := newFleet(t, 1, all, Options{Keys: MaxKeys})
	list := List{1, names(2)}
	f.demand = func(name string, _ int, now time.Time, keys int) Demand {
		d := Demand{Units: 1e6}
		for k := range 4 * keys { // other keys in each round, and too many
			d.Keys = append(d.Keys, KeyDemand{uint64(1 + k + 1000*int(now.Sub(t0)/time.Second)), 1000})
		}
		return d
	}
	largest, keys, vectors := 0, 0, 0
	f.replied = func(b []byte) {
		largest = max(largest, len(b))
		m, err := decode(b, &list)
		if err != nil {
			t.Fatal(err)
		}
		if m.Division != nil {
			vectors = max(vectors, len(m.Division.Vectors))
		}
		if m.Report != nil {
			keys = max(keys, len(m.Report.Items[0].Keys))
		}
	}
	f.sent = func(_ string, b []byte) { f.replied(b) }
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(5 * time.Second)
	p := f.members["m000"]
	t.Logf("%d bytes, %d keys, %d vectors, %d rounds", largest, keys, vectors, f.rounds)
	if !p.core.complete || f.rounds < 4 {
		t.Errorf("after 5 refreshes, %d rounds; complete: %v", f.rounds, p.core.complete)
	}
	if largest > MaxMessage || keys != 2*MaxKeys || vectors != quotas*(1+MaxKeys) {
		t.Errorf("a message of %d bytes, %d keys of a report, %d vectors", largest, keys, vectors)
	}
	long := List{2, names(80)}
	if err := p.core.fits(long); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("a list that is too long for messages: %v", err)
	}
}
