package division

import (
	"testing"
	"time"
)

// The keys with the highest demand have their own divisions, by their own demand, and do not
// count in the demand of other keys. When they are quiet, they have their quota's shares again.
func TestKeys(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}}, Options{Keys: 2})
	list := List{1, names(3)}
	hot := true
	f.demand = func(name string, _ int, _ time.Time, keys int) Demand {
		d := Demand{Units: 10}
		if hot && name == "m000" {
			d = Demand{Units: 1010, Keys: []KeyDemand{{7, 1000}}}
		}
		for key := uint64(100); len(d.Keys) < keys; key++ { // little demand for many keys
			d.Keys = append(d.Keys, KeyDemand{key, 0.1})
		}
		return d
	}
	for _, name := range list.Members {
		f.start(name, list)
	}
	f.run(8 * time.Second)
	if !f.becomes(list, 3*time.Second) {
		t.Fatal(f.whole(list))
	}
	a, b := f.members["m000"].shares.Quotas[0], f.members["m001"].shares.Quotas[0]
	if a.Of(7) < 280 || b.Of(7) > 10 {
		t.Errorf("of the hot key, the member that is asked for it has %d units, another %d; want 290 and 5", a.Of(7), b.Of(7))
	}
	if a.Units < 80 || a.Units > 120 || b.Units < 80 || b.Units > 120 {
		t.Errorf("of other keys, members have %d and %d units; want a third each", a.Units, b.Units)
	}
	if len(a.Keys) != 2 {
		t.Errorf("%d keys have their own divisions; want 2", len(a.Keys))
	}

	hot = false
	f.run(8 * time.Second)
	if !f.becomes(list, 3*time.Second) {
		t.Fatal(f.whole(list))
	}
	if a := f.members["m000"].shares.Quotas[0]; a.Of(7) != a.Units {
		t.Errorf("of the key that was hot, %d units; want %d, as of others", a.Of(7), a.Units)
	}
}

// Members with different quotas, in the middle of a deployment, divide the quotas that they
// have in common. A quota that only some members know is divided between them.
func TestOtherQuotas(t *testing.T) {
	f := newFleet(t, 1, []Quota{{Name: "core", Total: 300}, {Name: "old", Total: 60}}, Options{Keys: -1})
	list := List{1, names(3)}
	f.start("m000", list)
	f.start("m001", list)
	f.quotas = f.quotas[:1]
	f.start("m002", list)
	f.run(5 * time.Second)
	core, old := int64(0), int64(0)
	for _, p := range f.members {
		core += p.shares.Quotas[0].Units
		if p.name != "m002" {
			old += p.shares.Quotas[1].Units
		}
	}
	if core != 300 || old != 60 {
		t.Errorf("300 of core are divided into %d, 60 of old into %d", core, old)
	}
}

// Members with different totals of a quota, in the middle of a deployment, divide the lowest.
func TestOtherTotals(t *testing.T) {
	for _, c := range []struct{ old, new int64 }{{300, 600}, {600, 300}} {
		f := newFleet(t, 1, []Quota{{Name: "core", Total: 600}}, Options{Keys: -1})
		list := List{1, names(3)}
		f.totals = []int64{c.old}
		for _, name := range list.Members {
			f.start(name, list)
		}
		f.run(3 * time.Second)
		f.totals = []int64{c.new}
		for i, name := range list.Members {
			f.members[name].stop()
			f.run(2 * time.Second)
			f.start(name, list)
			f.run(3 * time.Second)
			want := min(c.old, c.new)
			if i == 2 {
				want = c.new
			}
			if f.sums[0] != want {
				t.Errorf("from %d to %d, %d of three processes: the shares add up to %d, want %d", c.old, c.new, i+1, f.sums[0], want)
			}
		}
	}
}
