package synced

import (
	"sync"
	"sync/atomic"
)

// A reset has a time. Entries have the time of the last reset that their process knows, and a root
// keeps it with the counter: the latest one wins, and units from before it are dropped. A process
// hears of a reset by the reply to its next entry of the counter, and of most of them earlier: each
// reply has the recent resets, by name.

// reset begins c again at now, after a reset at resetAt. Of the root i, it keeps the units that the
// root has not acknowledged; of -1, none.
func (c *counter) reset(resetAt int64, i int, now int64) {
	for k := range c.counts {
		part := c.counts[k].part
		if i >= 0 {
			part = c.counts[k].views[i].acked
		}
		c.counts[k].reset(&c.limits[k], part, now)
	}
	c.resetAt, c.resets, c.isReset = resetAt, c.resets+1, false
}

// hear begins c again if the root of a has a later reset. The units that the root has not
// acknowledged are at most late ms old, or overdue. They stay if the reset is older than that.
// Otherwise some are probably from before it, and all are dropped: units that came back would need a
// second reset. hear reports whether c has changed.
func (c *counter) hear(resetAt int64, a *aggregator, late, now int64) bool {
	switch {
	case c.isReset && resetAt >= c.resetAt && c.resetAt > now-late: // this process's reset is later, and its clock is behind
		c.resetAt = resetAt + 1
	case resetAt <= c.resetAt:
		return false
	case a.lateness == inTime && resetAt < now-late:
		c.reset(resetAt, a.index, now)
	default:
		c.reset(resetAt, -1, now)
	}
	return true
}

// resets are those that roots have reported lately, in ms, by the counters' names at roots.
type resets struct {
	version atomic.Uint32
	mu      sync.Mutex
	at      map[name]int64
}

const (
	resetSize  = 20   // bytes, in a reply
	resetsMost = 1000 // names: there is no need to keep them, only to hear of them early
)

// add adds the resets at the end of a reply.
func (r *resets) add(recent []byte) {
	if len(recent) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for ; len(recent) > 0; recent = recent[resetSize:] {
		n, at := name(recent[:len(name{})]), double(recent[len(name{}):])
		if !sane(at) || r.at[n] >= int64(at) {
			continue
		}
		if r.at == nil || len(r.at) >= resetsMost {
			r.at = make(map[name]int64)
		}
		r.at[n] = int64(at)
		r.version.Add(1)
	}
}

// apply begins c again if it was reset since it was asked for last. Its caller holds the stripe's
// lock.
func (r *resets) apply(c *counter, now int64) {
	version := r.version.Load()
	if c.heard == version {
		return
	}
	c.heard = version
	r.mu.Lock()
	at := r.at[c.root]
	r.mu.Unlock()
	if at > c.resetAt {
		c.reset(at, -1, now)
	}
}
