package quota_test

import (
	"testing"

	"github.com/weir-go/weir/throttler/quota"
)

func TestModes(t *testing.T) {
	for m, want := range map[quota.Mode]struct {
		name string
		asks int64
	}{
		quota.Enforce: {"enforce", 7}, quota.Record: {"record", 0}, quota.Check: {"check", 7},
		quota.AtMost: {"at-most", 1}, quota.Capped: {"capped", 7}, 9: {"Mode(9)", 7},
	} {
		if m.String() != want.name || m.Known() != (m != 9) || m.Asks(7) != want.asks || m.Asks(0) != 0 {
			t.Errorf("%v: known %v, asks for %d of 7; want %+v", m, m.Known(), m.Asks(7), want)
		}
	}
}
