package redisbackend

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/throttler"
)

// A flight is one round trip: calls of scripts, written at once, for many decisions.
// The next flight reuses its memory.
type flight struct {
	departed time.Time // guarded by the line's mutex

	jobs  []*job
	calls []call
	args  []any
}

// call is one call of a script.
type call struct {
	jobs []*job
	cmd  redis.Cmder
}

var flightPool = sync.Pool{New: func() any { return new(flight) }}

// run sends the decisions of f and gives each its outcome. It resends a call, with
// the script's text, only if the server is sure not to have run it.
func (f *flight) run(l *line) {
	ctx, cancel := f.context()
	defer cancel()
	f.send(ctx, l, "evalsha")
	for tries := 1; f.deliver(l, tries < 3); tries++ {
		f.send(ctx, l, "eval")
	}
}

// context returns a context that ends with the last deadline of f's decisions, so
// that no decision is cut short by another's deadline. It has no deadline if one of
// them has none: the client's own timeouts end the flight then.
func (f *flight) context() (context.Context, context.CancelFunc) {
	if len(f.jobs) == 1 {
		return f.jobs[0].ctx, func() {}
	}
	var last time.Time
	for _, j := range f.jobs {
		deadline, ok := j.ctx.Deadline()
		if !ok {
			return context.Background(), func() {}
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(context.Background(), last)
}

// send sends f's decisions in as few calls as possible, and returns when the calls
// have their replies or errors.
func (f *flight) send(ctx context.Context, l *line, command string) {
	f.plan(l.splits.Load())
	for i := range f.calls {
		c := &f.calls[i]
		c.cmd = c.jobs[0].script.newCmd(ctx, f.argsOf(c.jobs, command)...)
	}
	if len(f.calls) == 1 {
		c := f.calls[0].cmd
		if err := l.client.Process(ctx, onceCmd{c}); err != nil && c.Err() == nil {
			c.SetErr(err)
		}
		return
	}
	pipe := l.client.Pipeline()
	for i := range f.calls {
		_ = pipe.Process(ctx, onceCmd{f.calls[i].cmd}) // queues it
	}
	_, _ = pipe.Exec(ctx) // each command has its error
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
		for n < len(rest) && n < perCall && rest[0].kind != lone && rest[0].compare(rest[n], splits) == 0 && work+rest[n].work <= throttler.MaxWork {
			work += rest[n].work
			n++
		}
		f.calls = append(f.calls, call{jobs: rest[:n:n]})
		rest = rest[n:]
	}
}

// argsOf returns the arguments of a call for jobs.
func (f *flight) argsOf(jobs []*job, command string) []any {
	start, keys := len(f.args), 0
	for _, j := range jobs {
		keys += len(j.keys)
	}
	script := jobs[0].script
	source := script.hash
	if command == "eval" {
		source = script.text
	}
	f.args = append(f.args, command, source, keys)
	for _, j := range jobs {
		for i := range j.keys {
			f.args = append(f.args, &j.keys[i])
		}
	}
	for _, j := range jobs {
		f.args = append(f.args, &j.packed)
		if j.more != nil {
			f.args = append(f.args, &j.more)
		}
	}
	return f.args[start:len(f.args):len(f.args)]
}

// deliver gives f's decisions their outcomes. If again, it leaves the decisions of
// calls that did not run in f instead, and reports whether there are any.
func (f *flight) deliver(l *line, again bool) bool {
	f.jobs = f.jobs[:0] // the calls have them, in the same array and order
	for i := range f.calls {
		c := &f.calls[i]
		err := c.cmd.Err()
		switch {
		case err == nil:
			c.deliver()
		case again && l.didNotRun(c, err):
			f.jobs = append(f.jobs, c.jobs...)
		default:
			for _, j := range c.jobs {
				j.finish(err)
			}
		}
		*c = call{}
	}
	clear(f.args)
	f.args = f.args[:0]
	clear(f.jobs[len(f.jobs):cap(f.jobs)])
	return len(f.jobs) > 0
}

// didNotRun reports whether err means that the server did not start c, for a reason
// that resending it with the script's text removes.
func (l *line) didNotRun(c *call, err error) bool {
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return true
	case redis.HasErrorPrefix(err, "CROSSSLOT") && len(c.jobs) > 1:
		l.splits.Store(true) // the one address hides several servers
		return true
	}
	return false
}

// deliver cuts the reply to c into the replies to its decisions. If the script cannot
// have given it, no part of it is trusted.
func (c *call) deliver() {
	if cmd, ok := c.cmd.(*redis.IntSliceCmd); ok { // its only decision's
		c.jobs[0].numbers = cmd.Val()
		c.jobs[0].finish(nil)
		return
	}
	rest := []byte(c.cmd.(*redis.StringCmd).Val())
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
	if j.kind != o.kind || !splits {
		return int(j.kind) - int(o.kind)
	}
	return bytes.Compare(j.partition, o.partition)
}
