package middleware

import (
	"net/http"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
	"github.com/weir-go/weir/throttler/driver"
)

func TestEachCombinationOfAbilitiesHasItsType(t *testing.T) {
	l := new(ledger)
	for can := range flushes | hijacks | pushes | notifies | copies + 1 {
		w := l.writer(can)
		if got := abilities(w); got != can {
			t.Errorf("%T has abilities %05b, want %05b", w, got, can)
		}
		for _, w := range []any{w, controlled{writer{l}}} {
			if _, ok := w.(interface{ WriteString(string) (int, error) }); !ok {
				t.Errorf("%T has no WriteString", w)
			}
		}
	}
}

// What a header was given stays: it may be on its way when another is written, as
// by a handler that http.TimeoutHandler has given up.
func TestHeadersShareNoValues(t *testing.T) {
	decide := func(used int64) *throttler.Decision {
		p := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
		d := driver.NewDecision(driver.NewRequest(0, p.Charge("alice")))
		d.Results()[0].Used = used
		return &throttler.Decision{Decision: decision.FromDriver(d)}
	}
	var values headerValues
	first, second := make(http.Header), make(http.Header)
	values.write(first, numeral{}, decide(1))
	values.write(second, numeral{}, decide(2))
	if first.Get(headerUsed) != "1" || second.Get(headerUsed) != "2" {
		t.Errorf("got %v and %v, want 1 and 2 used", first, second)
	}
}

// Every request has a ledger. Its size is a good part of what a request leaves to the
// garbage collector.
func TestLedgersAreSmall(t *testing.T) {
	if size := unsafe.Sizeof(ledger{}); size > 240 { // a size that the allocator has
		t.Errorf("a ledger has %d bytes, want at most 240; few requests need an extra", size)
	}
}
