package memorybackend

import (
	"hash/maphash"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A goroutine that waits for a lock does not slow down the holders of that lock or of others.
func TestLocksAndTablesShareNoCacheLines(t *testing.T) {
	const line = 64
	if strconv.IntSize < 64 {
		return // the fields have other sizes; shared lines cost only time
	}
	if size := unsafe.Sizeof(stripe{}); size%line != 0 {
		t.Errorf("a stripe has %d bytes; make its padding %d bytes longer", size, line-size%line)
	}
	if at := unsafe.Offsetof(stripe{}.entries); at != line || unsafe.Sizeof(table{}) > line {
		t.Errorf("a stripe's table is %d bytes from byte %d; it is to be in the line behind the lock's", unsafe.Sizeof(table{}), at)
	}
}

// A count is found only by its whole name, whichever part of another name differs, even if the
// hashes are equal.
func TestACountIsFoundByItsWholeName(t *testing.T) {
	seed := maphash.MakeSeed()
	finds := func(t *table, policy, partition, key string) bool {
		var n name
		n.set(seed, &quota.Charge{Policy: &quota.Policy{Name: policy}, Key: key, Partition: partition})
		return t.find(&n, 1) != nowhere
	}
	for length := range 2 * maxName {
		key := strings.Repeat("k", length)
		var n name
		n.set(seed, &quota.Charge{Policy: &quota.Policy{Name: "core"}, Key: key, Partition: key})
		var table table
		table.add(&n, 1)
		if !finds(&table, "core", key, key) {
			t.Errorf("a key of %d bytes is not found", length)
		}
		for i := range length {
			if other := key[:i] + "l" + key[i+1:]; finds(&table, "core", other, other) {
				t.Errorf("a key of %d bytes is found as one that differs in byte %d", length, i)
			}
		}
		if length == 0 {
			continue
		}
		for _, other := range [][2]string{{"core", key[1:]}, {"core", key + "\x00"}, {"cor", key}, {"corek", key[1:]}, {"cors", key}} {
			if finds(&table, other[0], other[1], other[1]) {
				t.Errorf("a key of %d bytes is found under the name %q", length, other)
			}
		}
		if finds(&table, "core", "", key) || finds(&table, "core", key, "") || finds(&table, "core", key[1:], key) {
			t.Errorf("a key of %d bytes is found in another partition", length)
		}
	}
}

// A table has the same entries as a map through random additions and removals, while it grows
// and shrinks, even if many names have the same hash.
func TestTable(t *testing.T) {
	rng := testseed.Rand(t, 0)
	var table table
	want := make(map[name]int64)
	for step := range 10_000 {
		number := rng.IntN(400)
		grows := step/1000%2 == 0
		name, hash := name{byte(number), byte(number >> 8)}, uint32(number%100)*0x9e3779b1 // all over the index
		place := table.find(&name, hash)
		marked, ok := want[name]
		if ok != (place != nowhere) {
			t.Fatalf("%v is found: %v, want %v", name, !ok, ok)
		}
		if ok && table.entry(place).endsAt != marked {
			t.Fatalf("%v has the entry %d, want %d", name, table.entry(place).endsAt, marked)
		}
		switch {
		case ok && (rng.IntN(10) == 0) == grows:
			table.remove(place)
			delete(want, name)
		case !ok && (rng.IntN(10) > 0) == grows:
			place = table.add(&name, hash)
			want[name] = rng.Int64()
			table.entry(place).endsAt = want[name]
		}
		if table.n != len(want) || len(table.chunks)*chunkLen > table.n+2*chunkLen {
			t.Fatalf("%d entries in %d chunks, want %d entries", table.n, len(table.chunks), len(want))
		}
	}
}

// A window counts as full only if its quota is used up, whatever the quota: only a full window
// is never dropped for a new key.
func TestThePartOfAWindowThatIsUsed(t *testing.T) {
	for _, limit := range []int64{2, 3, 7, 1000, 65_535, 65_536, 99_999, quota.MaxQuota - 1, quota.MaxQuota} {
		b := NewDefault()
		p := &quota.Policy{Name: "core", Limits: []quota.Limit{{Quota: limit, Window: time.Hour}}}
		c := quota.Charge{Policy: p, Key: "alice", Partition: "alice", Cost: 1}
		if _, err := b.Take(t.Context(), driver.NewRequest(1_900_000_000_000, c)); err != nil {
			t.Fatal(err)
		}
		part := func(cost int64) usedPart {
			t.Helper()
			if cost > 0 {
				more := c
				more.Cost = cost
				if d, err := b.Take(t.Context(), driver.NewRequest(1_900_000_000_000, more)); err != nil || !d.Allowed {
					t.Fatalf("a take of %d of %d: allowed %v, error %v", cost, limit, d.Allowed, err)
				}
			}
			var name name
			hash := name.set(b.seed, &c)
			s := &b.stripes[b.numberOf(hash)]
			return s.entries.entry(s.entries.find(&name, uint32(hash>>32))).used
		}
		half := limit / 2
		want := float64(half) / float64(limit) * allUsed
		if got := part(half - 1); math.Abs(float64(got)-want) > 100 {
			t.Errorf("%d of %d: %d, want %.0f of %d", half, limit, got, want, allUsed)
		}
		if got := part(limit - half - 1); got == allUsed {
			t.Errorf("all but one of %d: it counts as full", limit)
		}
		if got := part(1); got != allUsed {
			t.Errorf("all of %d: %d, want %d", limit, got, allUsed)
		}
	}
}
