package config

import (
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// deep is a value that contains values of its type.
type deep struct {
	Word  string
	Below []deep
}

// A reader keeps no path of a value: for many values far below the top, paths would need far
// more memory than the file.
func TestPlacesTakeLittleMemory(t *testing.T) {
	const levels, values = 100, 20_000
	text := strings.Repeat("{below: [", levels) + strings.Repeat("{word: a}, ", values) + strings.Repeat("]}", levels)
	r := newReader("f.yaml")
	top := r.parse([]byte(text), "")
	if top == nil {
		t.Fatal(r.err())
	}
	all := new(deep)
	before := heap()
	r.read(fieldsOf(reflect.ValueOf(all).Elem()), top)
	grown := heap() - before
	if err := r.err(); err != nil {
		t.Fatal(err)
	}
	if grown > 20<<20 {
		t.Errorf("%d MB for %d values in a file of %d kB", grown>>20, values, len(text)>>10)
	}
	last := &r.top
	for range levels {
		last = last.at("below").item(0)
	}
	if got, want := last.at("word").String(), strings.TrimPrefix(strings.Repeat(".below[0]", levels), ".")+".word"; got != want {
		t.Errorf("the first value is at %s; want %s", got, want)
	}
	runtime.KeepAlive(all)
	runtime.KeepAlive(r)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
