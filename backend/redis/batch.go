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

	"github.com/weir-go/weir/internal/busy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/throttler/driver"
)

// A flight waits for its reply for patience at least, although its callers have left. A
// deadline of a millisecond then costs no connection, and a flight that fails says
// something about the server. One in its caller's goroutine has to end with the caller,
// which has had time for a reply if this much was left.
const (
	patience  = 50 * time.Millisecond
	aloneTime = 20 * time.Millisecond
)

// A flight is one round trip: calls of scripts, written at once, for many decisions.
// The next flight reuses its memory.
type flight struct {
	departed time.Time // guarded by the line's mutex
	alone    bool      // in the goroutine of its only caller
	limits   int       // of its decisions
	ctx      *busy.Context

	jobs  []*job
	calls []call
	cmds  []redis.Cmder // of calls
	args  []any

	outcome outcome
}

// call is one call of a script, or one decision's read.
type call struct {
	jobs []*job
	cmds []redis.Cmder
}

var flightPool = sync.Pool{New: func() any { return new(flight) }}

// run sends the decisions of f and gives each its outcome. It resends a call only if
// the server is sure not to have run it: with the script's text, and through the
// server's spare client if the client did not get to dial.
func (f *flight) run(l *line) {
	ctx := f.begin(l)
	end, _ := ctx.Deadline()
	c, again := l.client, false
	f.outcome = outcome{}
	start := f.departed // of the last try, which the outcome is of
	for tries := 1; ; tries++ {
		if tries > 1 {
			start = time.Now()
		}
		decisions := len(f.jobs)
		f.send(ctx, l, c, again)
		more := f.deliver(l, start, end, tries < 3)
		l.server.sent(start, decisions, f.outcome.err)
		if !more {
			break
		}
		again = true
		if f.outcome.spare != nil {
			c = f.outcome.spare.client
		}
	}
	l.server.record(&f.outcome, start, end)
	f.end()
}

// begin returns the context of f. It ends with the last deadline of f's decisions, so
// that no decision is cut short by another's, but not before f has been patient, and
// not after the line's timeout.
func (f *flight) begin(l *line) context.Context {
	end := f.departed
	if !f.alone {
		end = end.Add(l.patience)
	}
	for _, j := range f.jobs {
		if j.deadline.After(end) {
			end = j.deadline
		}
	}
	if latest := f.departed.Add(max(l.timeout, l.patience)); latest.Before(end) {
		end = latest
	}
	if f.ctx == nil {
		f.ctx = busy.NewContext()
	}
	values := context.Background()
	if len(f.jobs) == 1 {
		values = f.jobs[0].ctx
	}
	f.ctx.Start(values, end)
	return f.ctx
}

func (f *flight) end() {
	f.alone = false
	if f.ctx != nil && !f.ctx.Stop() {
		f.ctx = nil
	}
}

// send sends f's decisions in as few calls as possible, and returns when the calls
// have their replies or errors, or when ctx ends.
func (f *flight) send(ctx context.Context, l *line, c client, again bool) {
	f.plan(l.splits.Load())
	for i := range f.calls {
		c := &f.calls[i]
		start := len(f.cmds)
		if script := c.jobs[0].script; script != nil {
			f.cmds = append(f.cmds, script.newCmd(ctx, f.argsOf(c.jobs, again)...))
		} else {
			if c.jobs[0].proves {
				f.cmds = append(f.cmds, redis.NewStringCmd(ctx, "info", "replication"))
			}
			for k := range c.jobs[0].keys {
				f.cmds = append(f.cmds, redis.NewStringCmd(ctx, "get", &c.jobs[0].keys[k]))
			}
		}
		c.cmds = f.cmds[start:len(f.cmds):len(f.cmds)]
	}
	f.outcome.left = !c.roundTrip(ctx, f.cmds)
}

// plan divides f's decisions among calls. One call does no more work than one
// decision may, which bounds how long others wait for the server.
func (f *flight) plan(splits bool) {
	f.calls = f.calls[:0]
	if len(f.jobs) > 1 {
		slices.SortStableFunc(f.jobs, func(a, b *job) int { return a.compare(b, splits) })
	}
	for rest := f.jobs; len(rest) > 0; {
		n, work := 1, rest[0].work
		for n < len(rest) && rest[0].kind != unbatched && rest[0].compare(rest[n], splits) == 0 && work+rest[n].work <= quota.MaxWork {
			work += rest[n].work
			n++
		}
		f.calls = append(f.calls, call{jobs: rest[:n:n]})
		rest = rest[n:]
	}
}

const _ = uint8(quota.MaxWork) // decisions of a call, which are counted in a byte

// argsOf returns the arguments of a call for jobs. Decisions in a row of the same bytes,
// which have the same policies, costs and ms, are one argument, whose first byte says
// how many they are: the script reads it once.
func (f *flight) argsOf(jobs []*job, again bool) []any {
	start, keys := len(f.args), 0
	for _, j := range jobs {
		keys += len(j.keys)
	}
	script := jobs[0].script
	if again {
		f.args = append(f.args, "eval", script.text, keys)
	} else {
		f.args = append(f.args, "evalsha", script.hash, keys)
	}
	for _, j := range jobs {
		for i := range j.keys {
			f.args = append(f.args, &j.keys[i])
		}
	}
	var last *job
	for _, j := range jobs {
		if last != nil && bytes.Equal(last.packed[1:], j.packed[1:]) { // calls of swap.lua have one job
			last.packed[0]++ // a call has quota.MaxWork decisions at most
			continue
		}
		for i := range j.args {
			f.args = append(f.args, &j.args[i])
		}
		if last = j; j.packed != nil {
			j.packed[0] = 1 // a call that is sent again may have been another
			f.args = append(f.args, &j.packed)
		}
	}
	return f.args[start:len(f.args):len(f.args)]
}

// deliver gives f's decisions their outcomes. If again, it leaves the decisions of
// calls that did not run in f instead, and reports whether there are any.
func (f *flight) deliver(l *line, start, end time.Time, again bool) bool {
	if f.outcome.left {
		f.leave()
		return false
	}
	f.outcome.err = nil
	f.jobs = f.jobs[:0] // the calls have them, in the same array and order
	for i := range f.calls {
		c := &f.calls[i]
		err := c.err()
		f.outcome.add(c, err)
		switch {
		case err == nil:
			c.deliver()
		case again && f.mayResend(l, c, err):
			f.jobs = append(f.jobs, c.jobs...)
		default:
			if l.server.isOwnDelay(err, start, end) {
				err = fmt.Errorf("%w: %w", driver.ErrOverloaded, err)
			}
			for _, j := range c.jobs {
				j.finish(err)
			}
		}
		*c = call{}
	}
	clear(f.args)
	f.args = f.args[:0]
	clear(f.cmds)
	f.cmds = f.cmds[:0]
	clear(f.jobs[len(f.jobs):cap(f.jobs)])
	return len(f.jobs) > 0
}

// leave gives f's decisions their outcomes although the client has not returned. What
// it still holds is not used again.
func (f *flight) leave() {
	f.outcome.fail(f.jobs[0], context.DeadlineExceeded)
	for _, j := range f.jobs {
		j.left = true
		j.finish(context.DeadlineExceeded)
	}
	f.jobs, f.calls, f.cmds, f.args = nil, nil, nil, nil
}

// mayResend reports whether err means that the server did not start c, for a reason
// that resending it removes.
func (f *flight) mayResend(l *line, c *call, err error) bool {
	var op *net.OpError
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return true
	case redis.HasErrorPrefix(err, "CROSSSLOT") && len(c.jobs) > 1:
		l.splits.Store(true) // the one address hides several servers
		return true
	case errors.As(err, &op) && op.Op == "dial" && f.outcome.spare == nil:
		f.outcome.spare = l.server.spare.Load()
		return f.outcome.spare != nil
	}
	return false
}

// err returns the first error of c's commands. A missing key is none.
func (c *call) err() error {
	cmds := c.cmds
	if c.jobs[0].proves {
		cmds = cmds[1:] // the answer is worth nothing without the proof, but none is no failure
	}
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// deliver gives the decisions of c, which has its reply, theirs.
func (c *call) deliver() {
	j := c.jobs[0] // the only one, but for a StringCmd of a script
	switch cmd := c.cmds[0].(type) {
	case *redis.StringSliceCmd:
		j.values = cmd.Val()
		j.finish(nil)
	case *redis.StringCmd:
		if j.script != nil {
			reply, _ := cmd.Bytes()
			c.cut(reply)
			return
		}
		cmds := c.cmds
		if j.proves {
			j.proof, cmds = cmd.Val(), cmds[1:]
		}
		j.values = make([]string, len(cmds))
		for i := range cmds {
			j.values[i] = cmds[i].(*redis.StringCmd).Val()
		}
		j.finish(nil)
	}
}

// cut cuts the reply to c into the replies to its decisions. If the script cannot have
// given it, no part of it is trusted.
func (c *call) cut(rest []byte) {
	var err error
	for _, j := range c.jobs {
		if j.reply, rest, err = cutReply(rest, len(j.keys)); err != nil {
			break
		}
	}
	if err == nil && len(rest) > 0 {
		err = errReply
	}
	for _, j := range c.jobs {
		j.finish(err)
	}
}

// compare returns 0 if two decisions may share a call.
func (j *job) compare(o *job, splits bool) int {
	switch {
	case j.kind != o.kind:
		return int(j.kind) - int(o.kind)
	case j.script != o.script:
		return j.script.number - o.script.number
	case splits:
		return bytes.Compare(j.partition, o.partition)
	}
	return 0
}
