package redispolicies

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/quota"
)

// Bounds at several roots.
const (
	askTimeout   = 500 * time.Millisecond // for the version of a root
	maxTries     = 20                     // of a change, while others are made
	patientTries = 5                      // of these, the first that wait for other changes
	copyTimeout  = time.Minute            // until an unfinished copy expires
)

// answer is a server's answer about its version.
type answer struct {
	server *server
	is     version
	err    error
}

// ask asks all servers for their versions, except the server of have, if have is not nil.
func (s *Store) ask(ctx context.Context, have *answer) answers {
	all := make(answers, len(s.servers))
	var wg sync.WaitGroup
	for i, at := range s.servers {
		if have != nil && have.server == at {
			all[i] = *have
			continue
		}
		wg.Go(func() { all[i] = s.askOne(ctx, at) })
	}
	wg.Wait()
	return all
}

func (s *Store) askOne(ctx context.Context, at *server) answer {
	if len(s.servers) > 1 { // a server that hangs must not hold up the others
		bound, cancel := context.WithTimeout(ctx, s.askTimeout)
		defer cancel()
		ctx = bound
	}
	is, err := at.version(ctx)
	if err != nil && len(s.servers) > 1 && ctx.Err() == nil { // the connection may be to an earlier server at this address
		is, err = at.version(ctx)
	}
	return answer{at, is, err}
}

// answers are the answers of all servers, in order.
type answers []answer

// most reports whether is returns true for the answers of more than half of the servers. If
// the number of servers is even, the first one breaks ties.
func (all answers) most(is func(a *answer) bool) bool {
	votes := 0
	for i := range all {
		switch {
		case !is(&all[i]):
		case i == 0 && len(all)%2 == 0:
			votes += 3
		default:
			votes += 2
		}
	}
	return votes > len(all)
}

func (all answers) have(v version) func(a *answer) bool {
	return func(a *answer) bool { return a.err == nil && a.is == v }
}

// with returns a server that has a version, or nil.
func (all answers) with(v version) *server {
	for i := range all {
		if all.have(v)(&all[i]) {
			return all[i].server
		}
	}
	return nil
}

// enough reports whether more than half have answered.
func (all answers) enough() bool {
	return all.most(func(a *answer) bool { return a.err == nil })
}

// lost reports whether all have answered, and have no version.
func (all answers) lost() bool {
	return !slices.ContainsFunc(all, func(a answer) bool { return a.err != nil || a.is != "" })
}

// whole reports whether each server has answered.
func (all answers) whole() bool { return all.err() == nil }

// err returns why servers have not answered, or nil if all have.
func (all answers) err() error {
	var errs []error
	for _, a := range all {
		errs = append(errs, a.err)
	}
	return errors.Join(errs...)
}

// highest returns the answer with the highest version; no version is the lowest. ok is false
// if no server has answered. alone is false if servers have different versions of that number.
func (all answers) highest() (best answer, ok, alone bool) {
	for _, a := range all {
		switch n := a.is.number(); {
		case a.err != nil:
		case !ok || n > best.is.number():
			best, ok, alone = a, true, true
		case a.is != best.is && n == best.is.number():
			alone = false
			if a.is > best.is {
				best = a
			}
		}
	}
	return best, ok, alone
}

// made returns the answer of a server with the version that more than half have; ok is false
// if there is no such version. An unfinished change is one version ahead. If a server is
// further ahead, the others have lost versions, as with an old backup: then made returns that
// server's answer.
func (all answers) made() (a answer, ok bool) {
	for _, a := range all {
		if a.err != nil || a.is == "" || !all.most(all.have(a.is)) {
			continue
		}
		if highest, _, alone := all.highest(); alone && highest.is.number() > a.is.number()+1 {
			return highest, true
		}
		return a, true
	}
	return answer{}, false
}

// split reports whether servers have different versions, and no version is at more than half
// of them: a change may be in progress, or a server was asked just before it was mended.
func (all answers) split() bool {
	best, ok, _ := all.highest()
	_, made := all.made()
	return ok && !made && slices.ContainsFunc(all, func(a answer) bool { return a.err == nil && a.is != best.is })
}

// base returns the answer with the version that the next change must follow: the version of
// more than half of the servers, or the highest one, unless that may lose a change that was
// made. sure is false if it may lose a change in progress. Watches use it, too: see Watch.look.
func (all answers) base() (a answer, sure bool, err error) {
	if a, ok := all.made(); ok {
		return a, true, nil
	}
	best, ok, alone := all.highest()
	switch {
	case all.whole():
		return best, alone, nil
	case ok && alone && all.most(func(a *answer) bool { return a.err == nil && a.is != "" }):
		return best, true, nil
	}
	return answer{}, false, fmt.Errorf("redispolicies: too few of %d servers answer, or their answers differ: a change needs more than half of them: %w", len(all), all.err())
}

// best returns the answer to read from.
func (all answers) best() (answer, error) {
	if a, ok := all.made(); ok {
		return a, nil
	}
	if a, ok, _ := all.highest(); ok {
		return a, nil
	}
	return answer{}, all.err()
}

// reading calls read with the server to read from, and its version.
func (s *Store) reading(ctx context.Context, read func(at *server, is version) error) error {
	a, err := s.ask(ctx, nil).best()
	if err != nil {
		return err
	}
	return read(a.server, a.is)
}

// write makes a change at more than half of the servers, one after the other in their order,
// so that one of two concurrent changes is the first everywhere.
func (s *Store) write(ctx context.Context, entries []any) (number int64, err error) {
	if len(s.servers) == 1 {
		at := s.servers[0]
		return at.write(ctx, at.keys(""), "*", rand.Text()[:8], s.maxLog, entries)
	}
	c := &writing{Store: s, entries: entries}
	for try := range maxTries {
		number, err = c.following(ctx, try)
		if !errors.Is(err, errMoved) && (!errors.Is(err, errTooFew) || try >= patientTries) {
			return number, err
		}
		if err := sleep(ctx, time.Millisecond<<min(try, 6)); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// writing is a change that is being made at several servers.
type writing struct {
	*Store
	entries []any
	tried   []version // that the change may have
}

// errTooFew is returned if a change was made at too few servers, such as when one was killed
// during it. The change is tried again: other servers get a copy from one that made it.
var errTooFew = errors.New("redispolicies: the change was made at too few servers: it needs more than half of them")

// following makes the change after the current version.
func (c *writing) following(ctx context.Context, try int) (number int64, err error) {
	all := c.ask(ctx, nil)
	base, sure, err := all.base()
	switch {
	case err != nil:
		return 0, err
	case !sure && try < patientTries:
		return 0, errMoved // others may be about to agree
	}
	for i := range all { // until enough have the base; processes mend the others
		if a := &all[i]; a.err == nil && behind(a.is, base.is) && !all.most(all.have(base.is)) {
			if a.err = c.mend(ctx, base.server, a.server, a.is, base.is); errors.Is(a.err, errMoved) {
				return 0, errMoved
			}
			a.is = base.is
		}
	}
	if slices.Contains(c.tried, base.is) && all.most(all.have(base.is)) {
		return base.is.number(), nil
	}
	return c.writeTo(ctx, all, base.is)
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// writeTo makes the change at all servers that have its base.
func (c *writing) writeTo(ctx context.Context, all answers, base version) (number int64, err error) {
	drawn, made := rand.Text()[:8], make(answers, len(all))
	c.tried = append(c.tried, version(fmt.Sprintf("%d %s", base.number()+1, drawn)))
	var errs []error
	for i, a := range all {
		made[i].err = errMoved
		if a.err != nil || a.is != base {
			continue
		}
		n, err := a.server.write(ctx, a.server.keys(""), base, drawn, c.maxLog, c.entries)
		if made[i].err = err; err == nil {
			number = n
		} else if errors.Is(err, errMoved) {
			return 0, errMoved // another change came first
		} else if errs = append(errs, err); errors.Is(err, quota.ErrInvalid) {
			return 0, err // it is invalid everywhere
		}
	}
	if made.most(func(a *answer) bool { return a.err == nil }) {
		return number, nil
	}
	return 0, errors.Join(append([]error{errTooFew}, append(errs, all.err())...)...)
}

//go:embed copied.lua
var copiedText string

var copied = redis.NewScript(copiedText)

// behind reports whether a server's version, is, can be replaced by one that was made: no
// change in progress needs it.
func behind(is, made version) bool { return is != made && is.number() <= made.number() }

// mend makes to, at version was, a copy of from, at version is or later. It returns errMoved
// if another process mends to, or if to is not at version is afterwards.
func (s *Store) mend(ctx context.Context, from, to *server, was, is version) error {
	drawn := rand.Text()[:8]
	err := to.client.SetArgs(ctx, to.key("mending"), drawn, redis.SetArgs{Mode: "NX", TTL: copyTimeout}).Err()
	switch {
	case errors.Is(err, redis.Nil):
		return errMoved // by another
	case err != nil:
		return fmt.Errorf("redispolicies: %w", err)
	}
	c := &copying{to: to, keys: to.keys("copy:" + drawn + ":")}
	if err = c.run(ctx, from); err == nil {
		err = c.install(ctx, was)
	} else {
		_ = to.client.Unlink(context.WithoutCancel(ctx), c.keys...).Err() // they expire, too
	}
	if c.is != is && err == nil {
		err = errMoved // to has a later version
	}
	_ = to.client.Del(context.WithoutCancel(ctx), to.key("mending")).Err() // it expires, too
	return err
}

// copying is a copy in progress.
type copying struct {
	to   *server
	keys []string
	is   version // of the copy
	own  version // at the copy's own key, "" before the first flush

	entries []any
}

// errGone is returned if a copy was lost before it was complete.
var errGone = errors.New("redispolicies: the keys of an unfinished copy have expired or were evicted; it is made again; if that fails too, set the root's maxmemory-policy to noeviction")

// install puts the copy in the place of the policies at c.to, which are at version was.
func (c *copying) install(ctx context.Context, was version) error {
	n, err := copied.Run(ctx, c.to.client, append(c.to.keys(""), c.keys...), string(was), string(c.is), string(c.own)).Int64()
	switch {
	case err != nil:
		return err
	case n < 0:
		return errGone
	case n == 0:
		return errMoved
	}
	return nil
}

// run copies the content of from. It copies overrides page by page, and holds all policies in
// memory, as every process does.
func (c *copying) run(ctx context.Context, from *server) error {
	began, err := from.version(ctx)
	if err != nil {
		return err
	}
	if err := from.scan(ctx, "overrides", func(field, text string) error { return c.put(ctx, "o", field, text, "") }); err != nil {
		return err
	}
	r := newReading(true)
	if err := from.readPolicies(ctx, r); err != nil {
		return err
	}
	if c.is, err = from.changes(ctx, began, r.change); err != nil {
		return err
	}
	for field, text := range r.overrides {
		if err := c.put(ctx, "o", field, text, ""); err != nil {
			return err
		}
	}
	var names []string
	depths := make(map[string]int)
	for name := range r.policies {
		names = append(names, name)
		for at := name; r.policies[at].parent != "" && depths[name] < len(r.policies); depths[name]++ {
			at, _, _ = strings.Cut(r.policies[at].parent, "\n")
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(depths[a], depths[b]) }) // parents first
	for _, name := range names {
		if err := c.put(ctx, "p", name, r.policies[name].text, r.policies[name].parent); err != nil {
			return err
		}
	}
	if err := c.flush(ctx); err != nil {
		return err
	}
	return c.catchUp(ctx, from)
}

// catchUps bounds the rounds of a copy: see catchUp.
const catchUps = 20

// catchUp copies the changes made during the copy, repeatedly, until there are no more:
// otherwise a large copy would never be complete while changes are many.
func (c *copying) catchUp(ctx context.Context, from *server) error {
	for range catchUps {
		is, err := from.changes(ctx, c.is, func(member, value, mark string) {
			switch kind, field := kindOf(member); kind {
			case "p":
				c.entries = append(c.entries, kind, field, value, mark)
			case "o":
				c.entries = append(c.entries, kind, field, value, "")
			}
		})
		switch {
		case err != nil:
			return err
		case is == c.is:
			return nil
		case len(c.entries) > 4*MaxChange:
			return errMoved // parents might come after their children
		}
		c.is = is
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *copying) put(ctx context.Context, kind, field, value, parent string) error {
	if c.entries = append(c.entries, kind, field, value, parent); len(c.entries) < 4*MaxChange {
		return nil
	}
	return c.flush(ctx)
}

func (c *copying) flush(ctx context.Context) error {
	if len(c.entries) == 0 {
		return nil
	}
	n, err := c.to.write(ctx, c.keys, "*", "copy", 1, c.entries)
	c.entries = c.entries[:0]
	switch {
	case err != nil:
		return err
	case n <= c.own.number():
		return errGone // the earlier entries
	}
	c.own = version(fmt.Sprintf("%d copy", n))
	_, err = c.to.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range c.keys {
			p.Expire(ctx, key, copyTimeout)
		}
		return nil
	})
	return err
}
