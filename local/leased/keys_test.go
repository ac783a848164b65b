package leased_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler"
)

// A key takes the same memory whatever its length: MaxKeys bounds bytes too.
func TestSequentialLongKeysAreNotKept(t *testing.T) {
	c := clock.NewManual(t0)
	b := open(t, memorybackend.NewDefault(), &leased.Options{Busy: 1, Clock: c})
	th := throttler.New(b, &throttler.Options{Clock: c})
	before := heap()
	for i := range 500 {
		key := fmt.Sprint(strings.Repeat("k", 64<<10), i)
		for range 2 {
			if d, err := th.Take(t.Context(), hour.Charge(key)); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
		}
	}
	if grown := heap() - before; grown > 2<<20 {
		t.Errorf("500 keys of 64 KiB take %d KiB", grown>>10)
	}
	runtime.KeepAlive(b)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
