package redisbackend

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/lua"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// job is one decision to send: the call of a script or, without one, a read of keys.
type job struct {
	ctx context.Context

	script    *script // nil for a read, or if no script decides
	partition []byte  // the part of its keys that selects a cluster's slot
	keys      []arg   // of its charges
	costs     int     // in the reply: one for each charge in mode AtMost
	packed    arg     // the argument of a script that decides
	args      []arg   // the arguments of swap.lua

	limits, work int // the number of limits, and the sum of their Work

	buf   []byte   // of keys and packed
	shape [64]byte // room for most

	proves bool // the reply has INFO replication too: a replica's read shows how current the replica is

	tries int  // that a Cluster answered by TRYAGAIN
	alone bool // it shares no call from now on

	timeout     time.Duration // the server's time; if 0, the context's deadline or, without one, the batcher's timeout
	begun       time.Time
	deadline    time.Time
	ownDeadline bool // before the context's
	timer       *time.Timer

	stage atomic.Int32

	// Set before done receives.
	reply        []byte   // of a script that decides
	values       []string // of swap.lua, or of a read, "" for a missing key
	proof        string   // if it proves
	heldByClient bool     // although its batch has ended
	err          error
	done         chan struct{}

	abandoned bool // a batch or the client holds it
}

var jobPool = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}

// newDecision returns the job of a take at now or, if st is not nil, of that settlement. p is
// nil if counts do not move; no script decides about counts that arrive.
func (b *Backend) newDecision(ctx context.Context, now int64, charges []quota.Charge, st *driver.Settlement, p *handoff.Placement) *job {
	j := b.newJob(ctx, charges)
	buf, shape := append(j.buf, 1), append(j.shape[:0], takes) // it is made once; see batch.argsOf
	var charged []driver.Result
	if st != nil {
		shape[0], charged = settlements, st.Charged.Results()
	}
	buf = algorithm.AppendUint(buf, 6, now)
	buf = algorithm.AppendUint(buf, 4, b.margin)
	if p != nil {
		buf = append(buf, 1)
	} else {
		buf = append(buf, 0)
	}
	for i := range charges {
		c := &charges[i]
		shape = append(shape, nextCharge)
		buf = algorithm.AppendUint(buf, 7, c.Cost)
		if st == nil && c.Mode != quota.Enforce {
			shape = append(shape, lua.Mode+byte(c.Mode))
			if c.Mode == quota.AtMost {
				j.costs++
			}
		}
		if st != nil {
			buf = algorithm.AppendUint(buf, 7, st.Costs[i])
			buf = algorithm.AppendUint(buf, 4, int64(charged[0].Mark.Generation))
			if st.Renews && c.Cost > 0 {
				buf = append(buf, 1)
			} else {
				buf = append(buf, 0)
			}
		}
		for k := range c.Policy.Limits {
			kind := len(buf)
			buf = algorithm.AppendLimit(buf, &c.Policy.Limits[k], now)
			shape = append(shape, buf[kind])
			if st != nil {
				mark := &charged[0].Mark
				buf = algorithm.AppendUint(algorithm.AppendUint(buf, 6, mark.At), 7, mark.Fraction)
				charged = charged[1:]
			}
		}
	}
	if j.limits == 1 {
		c := &charges[0]
		buf = algorithm.AppendBounds(buf, &c.Policy.Limits[0], now, st == nil && c.Cost == 1 && c.Mode == quota.Enforce)
	}
	j.packed, j.buf = buf[len(j.buf):], buf
	if p == nil || len(p.Arrivals) == 0 {
		j.script = scriptOf(shape)
	}
	return j
}

// newJob returns a job about charges, with nothing packed yet.
func (b *Backend) newJob(ctx context.Context, charges []quota.Charge) *job {
	j := jobPool.Get().(*job)
	j.ctx = ctx
	for i := range charges {
		c := &charges[i]
		start := len(j.buf)
		j.buf = b.appendKey(j.buf, c)
		j.keys = append(j.keys, j.buf[start:len(j.buf):len(j.buf)])
		j.limits += len(c.Policy.Limits)
		for k := range c.Policy.Limits {
			j.work += c.Policy.Limits[k].Work()
		}
	}
	j.partition = j.keys[0][:b.partitionBytes()]
	return j
}

// A count's Redis key is
//
//	weir:{Xr5rGRGJS5oQyXcP}/core                   key "alice", policy core
//	weir:{Xr5rGRGJS5oQyXcP}bQ9vzW1kqLZrNn3f/user   another key of alice's partition
//
// The braces hold a hash of the partition, so that a cluster keeps a partition in
// one slot. A hash of the key follows if the key is not the partition.
// Hashes are the first 96 bits of SHA-256: whatever bytes a client sends, it can't find
// a second key for another's hash, and its bytes are not shown. Sixteen characters, and
// not more, keep the whole key within 32 bytes of memory.
const hashChars = 16

// keysOf returns the Redis keys of charges, which share a partition.
func (b *Backend) keysOf(charges []quota.Charge) []string {
	keys := make([]string, len(charges))
	var buf [96]byte
	for i := range charges {
		keys[i] = string(b.appendKey(buf[:0], &charges[i]))
	}
	return keys
}

// appendKey appends the Redis key of c.
func (b *Backend) appendKey(buf []byte, c *quota.Charge) []byte {
	buf = append(buf, b.prefix...)
	buf = append(buf, '{')
	buf = appendHash(buf, c.Partition)
	buf = append(buf, '}')
	if c.Key != c.Partition {
		buf = appendHash(buf, c.Key)
	}
	buf = append(buf, '/')
	return append(buf, c.Policy.Name...)
}

// partitionBytes returns the number of leading bytes that all keys of a partition share.
func (b *Backend) partitionBytes() int { return len(b.prefix) + 1 + hashChars }

func appendHash(b []byte, s string) []byte {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.AppendEncode(b, sum[:hashChars*6/8])
}

// free returns j for reuse, unless a batch may still hold it.
func (j *job) free() {
	if j.abandoned || j.heldByClient { // in this order: once j is abandoned, its batch may write to it
		return
	}
	if j.timer != nil {
		j.timer.Stop()
	}
	clear(j.keys)
	*j = job{keys: j.keys[:0], buf: j.buf[:0], timer: j.timer, done: j.done}
	jobPool.Put(j)
}
