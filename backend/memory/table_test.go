package memorybackend

import (
	"flag"
	"hash/maphash"
	"math/rand/v2"
	"strconv"
	"testing"
	"unsafe"
)

// A goroutine that waits for one lock slows down none that has another.
func TestShardsShareNoCacheLines(t *testing.T) {
	const line = 64
	if strconv.IntSize < 64 {
		return // the fields have other sizes; it costs time and nothing else
	}
	if size := unsafe.Sizeof(shard{}); size%line != 0 {
		t.Errorf("a shard has %d bytes; make its padding %d bytes longer", size, line-size%line)
	}
	if end := unsafe.Offsetof(shard{}.entries) + unsafe.Sizeof(table{}); end > line {
		t.Errorf("a shard's lock and table end at byte %d, beyond the first %d", end, line)
	}
}

// A table keeps what a map does, through random additions and removals, also
// where many names have one hash.
func TestTable(t *testing.T) {
	seed := rand.Uint64()
	if f := flag.Lookup("seed").Value.String(); f != "0" {
		seed, _ = strconv.ParseUint(f, 10, 64)
	}
	t.Logf("-seed=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	table, names := table{}, maphash.MakeSeed()
	want := make(map[string]int64)
	for range 200_000 {
		name := strconv.Itoa(rng.IntN(2000))
		hash := uint32(maphash.String(names, name))
		place := table.find([]byte(name), hash)
		marked, ok := want[name]
		if ok != (place != nowhere) {
			t.Fatalf("%s is found: %v, want %v", name, !ok, ok)
		}
		if ok && table.at(place).endsAt != marked {
			t.Fatalf("%s has the entry %d, want %d", name, table.at(place).endsAt, marked)
		}
		switch {
		case ok && rng.IntN(3) > 0:
			table.remove(place)
			delete(want, name)
		case !ok && len(want) < 1500:
			place = table.add([]byte(name), hash)
			want[name] = rng.Int64()
			table.at(place).endsAt = want[name]
		}
		if table.n != len(want) || len(table.chunks)*chunkLen > table.n+2*chunkLen {
			t.Fatalf("%d entries in %d chunks, want %d entries", table.n, len(table.chunks), len(want))
		}
	}
}
