package redisbackend

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/backend/handoff"
	"github.com/weir-go/weir/backend/redis/internal/goredis"
	"github.com/weir-go/weir/backend/redis/internal/node"
	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/quota"
)

// A batch waits for its reply for at least minWait, even if its callers have left. So a
// deadline of a millisecond costs no connection, and a failed batch says something about the
// server. A batch in its caller's goroutine has to end with the caller, and is sent there only
// if the caller has inlineTime left.
const (
	minWait    = 50 * time.Millisecond
	inlineTime = 20 * time.Millisecond
)

// A batch is one round trip: calls of scripts, written at once, for many decisions.
// The next batch reuses its memory.
type batch struct {
	sentAt time.Time // guarded by the batcher's mutex
	inline bool      // in the goroutine of its only caller
	limits int       // of its decisions
	ctx    *busy.Context

	jobs  []*job
	calls []call
	cmds  []redis.Cmder // of calls
	args  []any

	outcome node.Outcome
	hung    bool            // the client did not return in time
	spare   *goredis.Client // to resend with, or nil
}

// call is one call of a script, or one decision's read.
type call struct {
	jobs  []*job
	cmds  []redis.Cmder
	first firstKey
}

var batchPool = sync.Pool{New: func() any { return new(batch) }}

// send sends b's decisions in as few calls as possible, and returns when the calls
// have their replies or errors, or when its context ends.
func (b *batch) send(to *batcher, c goredis.Client, again bool) {
	b.plan(to.perSlot.Load())
	for i := range b.calls {
		c := &b.calls[i]
		start := len(b.cmds)
		c.first = firstKey{b.ctx, &c.jobs[0].keys[0]}
		if script := c.jobs[0].script; script != nil {
			b.cmds = append(b.cmds, script.newCmd(b.ctx, b.argsOf(c, again)...))
		} else {
			if c.jobs[0].proves {
				b.cmds = append(b.cmds, redis.NewStringCmd(b.ctx, "info", "replication"))
			}
			b.cmds = append(b.cmds, redis.NewStringCmd(b.ctx, "get", &c.first))
			for k := range c.jobs[0].keys[1:] {
				b.cmds = append(b.cmds, redis.NewStringCmd(b.ctx, "get", &c.jobs[0].keys[1+k]))
			}
		}
		c.cmds = b.cmds[start:len(b.cmds):len(b.cmds)]
	}
	b.hung = !c.RoundTrip(b.ctx, b.cmds)
}

// plan divides b's decisions among calls. One call does no more work than one
// decision may, which bounds how long others wait for the server.
func (b *batch) plan(perSlot bool) {
	b.calls = b.calls[:0]
	if len(b.jobs) > 1 {
		slices.SortStableFunc(b.jobs, func(x, y *job) int { return x.compare(y, perSlot) })
	}
	for jobs := b.jobs; len(jobs) > 0; {
		n, work := 1, jobs[0].work
		for n < len(jobs) && jobs[0].isBatched() && jobs[0].compare(jobs[n], perSlot) == 0 && work+jobs[n].work <= quota.MaxWork {
			work += jobs[n].work
			n++
		}
		b.calls = append(b.calls, call{jobs: jobs[:n:n]})
		jobs = jobs[n:]
	}
}

// isBatched reports whether j may share a call with others of its script: a read and an
// exchange of states may not.
func (j *job) isBatched() bool { return j.script != nil && j.script != swapScript && !j.alone }

// compare orders decisions so that equal ones, which may share a call, are adjacent.
func (j *job) compare(o *job, perSlot bool) int {
	if order := j.script.order() - o.script.order(); order != 0 || !perSlot {
		return order
	}
	return bytes.Compare(j.partition, o.partition)
}

const _ = uint8(quota.MaxWork) // a byte counts the decisions of a call

// argsOf returns the arguments of c. Consecutive decisions with equal bytes,
// which have the same policies, costs and ms, are one argument. Its first byte is their
// number, and the script reads it once.
func (b *batch) argsOf(c *call, again bool) []any {
	jobs, start, keys := c.jobs, len(b.args), 0
	for _, j := range jobs {
		keys += len(j.keys)
	}
	script := jobs[0].script
	if again {
		b.args = append(b.args, "eval", script.text, keys)
	} else {
		b.args = append(b.args, "evalsha", script.hash, keys)
	}
	first := len(b.args)
	for _, j := range jobs {
		for i := range j.keys {
			b.args = append(b.args, &j.keys[i])
		}
	}
	b.args[first] = &c.first
	var last *job
	for _, j := range jobs {
		if last != nil && bytes.Equal(last.packed[1:], j.packed[1:]) { // calls of swap.lua have one job
			last.packed[0]++ // a call has at most quota.MaxWork decisions
			continue
		}
		for i := range j.args {
			b.args = append(b.args, &j.args[i])
		}
		if last = j; j.packed != nil {
			j.packed[0] = 1 // a call that is sent again may have other decisions
			b.args = append(b.args, &j.packed)
		}
	}
	return b.args[start:len(b.args):len(b.args)]
}

// newCmd returns a call of s. Its reply is one string of all its decisions' replies, or the
// array that swap.lua returns.
func (s *script) newCmd(ctx context.Context, args ...any) redis.Cmder {
	if s == swapScript {
		return redis.NewStringSliceCmd(ctx, args...)
	}
	return redis.NewStringCmd(ctx, args...)
}

// deliver gives b's decisions their outcomes. If again, calls that did not run leave their
// decisions in b instead, and deliver reports whether there are any.
func (b *batch) deliver(to *batcher, start, end time.Time, again bool) bool {
	if b.hung {
		b.abandon()
		return false
	}
	b.outcome.Err = nil
	b.jobs = b.jobs[:0] // the calls hold them, in the same array and order
	for i := range b.calls {
		c := &b.calls[i]
		err := c.err()
		if err == nil {
			b.outcome.Answered = true
			c.deliver()
			*c = call{}
			continue
		}
		b.outcome.Add(err, c.jobs[0].partition, c.jobs[0].script == nil)
		switch {
		case again && b.mayResend(to, c, err):
			b.jobs = append(b.jobs, c.jobs...)
		case redis.HasErrorPrefix(err, "TRYAGAIN"):
			for _, j := range c.jobs {
				to.askLater(j, err, len(c.jobs) > 1)
			}
		default:
			if to.server.IsOwnDelay(err, start, end) {
				err = fmt.Errorf("%w: %w", driver.ErrOverloaded, err)
			}
			for _, j := range c.jobs {
				j.finish(err)
			}
		}
		*c = call{}
	}
	clear(b.args)
	b.args = b.args[:0]
	clear(b.cmds)
	b.cmds = b.cmds[:0]
	clear(b.jobs[len(b.jobs):cap(b.jobs)])
	return len(b.jobs) > 0
}

// abandon fails b's decisions although the client has not returned. The memory that the client
// still holds is not used again.
func (b *batch) abandon() {
	b.outcome.Add(context.DeadlineExceeded, b.jobs[0].partition, b.jobs[0].script == nil)
	for _, j := range b.jobs {
		j.heldByClient = true
		j.finish(context.DeadlineExceeded)
	}
	b.jobs, b.calls, b.cmds, b.args = nil, nil, nil, nil
}

// mayResend reports whether err means that the server did not start c, for a reason that a
// second try avoids.
func (b *batch) mayResend(to *batcher, c *call, err error) bool {
	var op *net.OpError
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return true
	case redis.HasErrorPrefix(err, "CROSSSLOT"):
		to.perSlot.Store(true) // the one address hides several servers
		return len(c.jobs) > 1 // a single job spans partitions, which are asked one by one from now on
	case errors.As(err, &op) && op.Op == "dial" && b.spare == nil:
		b.spare = to.server.Spare()
		return b.spare != nil
	}
	return goredis.IsUnwritten(err) // another connection may be open
}

// err returns the first error of c's commands. A missing key is not an error.
func (c *call) err() error {
	cmds := c.cmds
	if c.jobs[0].proves {
		cmds = cmds[1:] // a missing proof makes the answer worthless, but is not a failure
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// deliver gives the decisions of c their replies. If the script can't have given the reply to
// c, no part of it is trusted.
func (c *call) deliver() {
	j := c.jobs[0] // the only one, unless they are batched
	switch j.script {
	case nil:
		cmds := c.cmds
		if j.proves {
			j.proof, cmds = cmds[0].(*redis.StringCmd).Val(), cmds[1:]
		}
		j.values = make([]string, len(cmds))
		for i := range cmds {
			j.values[i] = cmds[i].(*redis.StringCmd).Val()
		}
		j.finish(nil)
	case swapScript:
		j.values = c.cmds[0].(*redis.StringSliceCmd).Val()
		j.finish(nil)
	default:
		reply, _ := c.cmds[0].(*redis.StringCmd).Bytes()
		var err error
		for _, j := range c.jobs {
			if err == nil {
				j.reply, reply, err = splitReply(reply, len(j.keys)+j.costs)
			}
		}
		if err == nil && len(reply) > 0 {
			err = errReply
		}
		for _, j := range c.jobs {
			j.finish(err)
		}
	}
}

// splitReply splits the reply to a call, a concatenation of the replies to its decisions, into
// the first reply, which has so many parts, and the rest.
func splitReply(reply []byte, parts int) (first, tail []byte, err error) {
	if len(reply) == 0 {
		return nil, nil, errReply
	}
	size := 1
	switch {
	case '0' <= reply[0] && reply[0] <= '9':
		if parts != 1 {
			return nil, nil, errReply
		}
		size = digits
	case reply[0] == repliesUndecided:
	case reply[0] > repliesUndecided:
		return nil, nil, errReply
	default:
		for range parts {
			_, state := handoff.CutFront(reply[min(size, len(reply)):])
			if size = len(reply) - len(state) + 2; len(state) < 2 {
				return nil, nil, errReply
			}
			size += int(binary.BigEndian.Uint16(state))
		}
	}
	if len(reply) < size {
		return nil, nil, errReply
	}
	return reply[:size], reply[size:], nil
}

// finish gives j its outcome. The caller may reuse j from then on.
func (j *job) finish(err error) {
	j.err = err
	j.done <- struct{}{}
}
