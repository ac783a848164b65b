package redisbackend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

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

// connectTime is how long a decision waits for a connection, in addition to the server's time:
// enough for five round trips of 50 ms, to dial, to agree on TLS, to log in and to select a
// database.
const connectTime = 250 * time.Millisecond

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

// firstKey is the first key of a call. The client asks for its bytes when it writes the call to
// a connection that is open and logged in: the server's time begins.
type firstKey struct {
	ctx *busy.Context
	key *arg
}

// MarshalBinary implements encoding.BinaryMarshaler, for go-redis.
func (k *firstKey) MarshalBinary() ([]byte, error) {
	k.ctx.Sent()
	return *k.key, nil
}

// String returns the key: see arg.
func (k *firstKey) String() string { return k.key.String() }

var batchPool = sync.Pool{New: func() any { return new(batch) }}

// run sends the decisions of b and gives each its outcome. It resends a call only if the
// server has certainly not run it: with the script's text, and by the server's own client if
// the client could not dial.
func (b *batch) run(to *batcher) {
	ctx, timeout := b.begin(to)
	c, again := to.client, false
	b.outcome, b.hung, b.spare = node.Outcome{}, false, nil
	start := b.sentAt // of the last try, as the outcome is
	for tries := 1; ; tries++ {
		if tries > 1 {
			start = time.Now()
		}
		decisions := len(b.jobs)
		b.send(ctx, to, c, again)
		end, _ := ctx.Deadline()
		unsent := b.deliver(to, start, end, tries < 3)
		to.server.Sent(start, decisions, b.outcome.Err)
		if !unsent {
			to.server.Record(&b.outcome, start, end, max(timeout, inlineTime))
			break
		}
		again = true
		if b.spare != nil {
			c = *b.spare
		}
	}
	b.end()
}

// begin returns the context of b, and the time that the server has for its reply. It ends with
// the last deadline of b's decisions, so that no decision is cut short by another's, but not
// before minWait, and not after the batcher's timeout. Until b is sent, it lasts connectTime
// longer, or until the caller's deadline if b is in its goroutine.
func (b *batch) begin(to *batcher) (ctx *busy.Context, timeout time.Duration) {
	end := b.sentAt
	if !b.inline {
		end = end.Add(to.minWait)
	}
	for _, j := range b.jobs {
		if j.deadline.After(end) {
			end = j.deadline
		}
	}
	if latest := b.sentAt.Add(max(to.timeout, to.minWait)); latest.Before(end) {
		end = latest
	}
	if b.ctx == nil {
		b.ctx = busy.NewContext()
	}
	values := context.Background()
	if len(b.jobs) == 1 {
		values = b.jobs[0].ctx
	}
	connecting := connectTime
	if deadline, bounded := values.Deadline(); b.inline && bounded {
		connecting = min(connecting, max(deadline.Sub(end), 0))
	}
	b.ctx.Start(values, end, connecting)
	return b.ctx, end.Sub(b.sentAt)
}

func (b *batch) end() {
	b.inline = false
	if b.ctx != nil && !b.ctx.Stop() {
		b.ctx = nil
	}
}

// send sends b's decisions in as few calls as possible, and returns when the calls
// have their replies or errors, or when ctx ends.
func (b *batch) send(ctx *busy.Context, to *batcher, c goredis.Client, again bool) {
	b.plan(to.perSlot.Load())
	for i := range b.calls {
		c := &b.calls[i]
		start := len(b.cmds)
		c.first = firstKey{ctx, &c.jobs[0].keys[0]}
		if script := c.jobs[0].script; script != nil {
			b.cmds = append(b.cmds, script.newCmd(ctx, b.argsOf(c, again)...))
		} else {
			if c.jobs[0].proves {
				b.cmds = append(b.cmds, redis.NewStringCmd(ctx, "info", "replication"))
			}
			b.cmds = append(b.cmds, redis.NewStringCmd(ctx, "get", &c.first))
			for k := range c.jobs[0].keys[1:] {
				b.cmds = append(b.cmds, redis.NewStringCmd(ctx, "get", &c.jobs[0].keys[1+k]))
			}
		}
		c.cmds = b.cmds[start:len(b.cmds):len(b.cmds)]
	}
	b.hung = !c.RoundTrip(ctx, b.cmds)
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
		b.outcome.Add(err, c.jobs[0].partition, c.jobs[0].script == nil)
		switch {
		case err == nil:
			c.deliver()
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
