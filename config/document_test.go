package config

import (
	"runtime"
	"strings"
	"testing"
)

// deep is a value that contains values of its type.
type deep struct {
	Word  string
	Below []deep
}

// A document keeps no path of a value: for many values far below the top, paths would need far
// more memory than the file.
func TestPlacesTakeLittleMemory(t *testing.T) {
	const levels, values = 100, 20_000
	text := strings.Repeat("{below: [", levels) + strings.Repeat("{word: a}, ", values) + strings.Repeat("]}", levels)
	all := new(deep)
	before := heap()
	d := newDocument("f.yaml")
	if !d.parse([]byte(text), "") || !d.decode(all) || d.err() != nil {
		t.Fatal(d.err())
	}
	grown := heap() - before
	if grown > 40<<20 {
		t.Errorf("%d MB for %d values in a file of %d kB", grown>>20, values, len(text)>>10)
	}
	last := path(nil)
	for range levels {
		last = last.child("below").item(0)
	}
	last = last.child("word")
	if got, want := last.String(), strings.TrimPrefix(strings.Repeat(".below[0]", levels), ".")+".word"; got != want || d.get(last).Value != "a" {
		t.Errorf("the first value is at %s; want %s", got, want)
	}
	runtime.KeepAlive(all)
	runtime.KeepAlive(d)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
