package algorithm

import (
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// Resume returns a state that counts, for each of limits, the reported Used units from now
// until the reported ResetAt. It is for a store that knows a count only from a decision. A
// result does not say when its units were charged, so they are charged at now: a sliding
// window or log counts them up to a window longer, never shorter.
func Resume(limits []quota.Limit, now int64, reported []driver.Result) State {
	s := State{records: make([]record, len(limits))}
	for i := range limits {
		l, r := limitOf(&limits[i]), &s.records[i]
		r.kind, r.window = l.kind, l.window
		switch used, resetAt := reported[i].Used, reported[i].ResetAt; {
		case resetAt <= now:
		case kinds[l.kind].algorithm == quota.FixedWindow:
			r.ms, r.count = resetAt, used
		case used > 0:
			l.kind.counter().charge(r, l, used, now)
		}
	}
	return s
}
