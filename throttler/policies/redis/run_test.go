package redispolicies_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/internal/testkit/testseed"
	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

var runFor = flag.Duration("run-for", 3*time.Second, "how long TestReplacedUnderLoad replaces policies")

const (
	runEvery = 100 * time.Millisecond // how often policies are replaced, and looked at
	runFirst = 1_000_000              // the quota of version 0; each later version has one more
	runKeys  = 7                      // clients: each version blocks one of them
)

// A run replaces policies under load.
type run struct {
	*testing.T
	stores []*redispolicies.Store // of two writers
	path   string                 // of the file
	counts driver.Backend         // of all processes
	random *rand.Rand             // of the load

	inFile sync.Map              // quotas that a good version of the file has had
	good   [1 << 16]atomic.Int64 // by version of Redis: the number of good versions up to it
	last   atomic.Int64          // the last version; it may not be written yet
	taken  atomic.Int64
	done   chan struct{}
	takers sync.WaitGroup
}

// runner is a process of a run.
type runner struct {
	*redispolicies.Watch
	observe.Nothing
	run   *run
	table policies.Table
	file  *policies.File
	th    *throttler.Throttler

	closed atomic.Bool // it finds no more overrides, and keeps the ones found
}

// skewed is a clock that is ahead.
type skewed time.Duration

func (s skewed) Now() time.Time { return time.Now().Add(time.Duration(s)) }

// Warned implements observe.Observer. It accepts warnings of wrong versions. Others are errors.
func (p *runner) Warned(e observe.Warned) {
	if !strings.HasPrefix(e.Text, "the policies of a file are not in force: ") && !strings.Contains(e.Text, `policy "remote-b": `) {
		p.run.Errorf("a process was warned: %s", e.Text)
	}
}

// start starts a process with a clock that is ahead, and its load.
func (r *run) start(ahead time.Duration) *runner {
	p := &runner{run: r}
	for { // a process does not start on a file that is wrong
		var err error
		p.file, err = policies.WatchFile(p.table.Source("file"), r.path, &policies.FileOptions{Every: runEvery, Observer: p})
		if err == nil {
			break
		}
		if !errors.Is(err, quota.ErrInvalid) || r.Failed() {
			r.Error(err)
			return p
		}
		time.Sleep(time.Millisecond)
	}
	p.Watch = redispolicies.NewWatch(r.Context(), &p.table, "redis", r.stores[0], &redispolicies.Options{Every: runEvery, Timeout: 10 * time.Second, Observer: p})
	p.th = throttler.New(r.counts, &throttler.Options{Clock: skewed(ahead), Policies: &p.table})
	for range 2 {
		r.takers.Go(func() {
			var before runDecision
			for p.take(&before) && p.ask(r.random.IntN(runKeys)) {
				select {
				case <-r.done:
					return
				case <-time.After(time.Millisecond): // a pace
				}
			}
		})
	}
	return p
}

// version returns the version of Redis that is in force in p, or 0.
func (p *runner) version() int64 { return p.table.Status()[0].Version }

// explains reports whether a version between from and to gives Redis' policies that quota.
func (r *run) explains(from, to, quota int64) bool {
	for v := from; v <= to; v++ {
		if runFirst+r.good[v].Load() == quota {
			return true
		}
	}
	return false
}

// runDecision is the last decision that a taker has seen.
type runDecision struct{ file, redis, used int64 }

// take takes one unit of four counts, which is never refused. It reports whether the decision
// is by one version of the file and one of Redis, no older than the last decision's, and
// whether the counts continue.
func (p *runner) take(before *runDecision) bool {
	from := p.version()
	var charges []throttler.Charge
	for _, name := range []string{"file-a", "file-b", "remote-a", "remote-b"} {
		charges = append(charges, daily(name, runFirst).Charge("k"))
	}
	d, err := p.th.Take(context.Background(), charges...)
	if err != nil || !d.Allowed || d.NumLimits() != 4 {
		p.run.Errorf("%v, %v; no version explains it", d, err)
		return false
	}
	p.run.taken.Add(1)
	now := runDecision{d.Limit(0).Limit.Quota, d.Limit(2).Limit.Quota, d.Limit(0).Used}
	_, good := p.run.inFile.Load(now.file)
	if !good || d.Limit(1).Limit.Quota != now.file || d.Limit(3).Limit.Quota != now.redis || !p.run.explains(from, p.version(), now.redis) {
		p.run.Errorf("%v; want one good version of the file, and one of Redis", d)
	}
	for i := range 4 {
		if d.Limit(i).Used < now.used {
			p.run.Errorf("%v: a fresh window", d)
		}
	}
	if now.file < before.file || now.redis < before.redis || now.used <= before.used {
		p.run.Errorf("%+v after %+v; want no older version, and no fresh window", now, *before)
	}
	*before = now
	return !p.run.Failed()
}

// blocks reports whether a version blocks a client.
func (r *run) blocks(version int64, client int) bool {
	return version > 0 && r.good[version].Load()%runKeys == int64(client)
}

// ask decides about a client that some versions block, and reports whether a version that was
// in force during the decision explains it.
func (p *runner) ask(client int) bool {
	from := p.version()
	d, err := p.th.Take(context.Background(), daily("remote-a", runFirst).Charge(fmt.Sprint("client-", client)))
	if err != nil || d.Allowed == d.Blocked {
		p.run.Errorf("%v, %v; no version explains it", d, err)
		return false
	}
	if !d.Blocked && p.closed.Load() {
		return true
	}
	to := p.run.last.Load()
	for v := from; v <= to; v++ {
		if p.run.blocks(v, client) == d.Blocked {
			return true
		}
	}
	p.run.Errorf("%v of client %d; versions %d to %d do not explain it", d, client, from, to)
	return false
}

func (p *runner) close() {
	p.closed.Store(true)
	if p.file != nil {
		p.file.Close()
		p.Close()
	}
}

func daily(name string, n int64) *quota.Policy {
	return &quota.Policy{Name: name, Limits: []quota.Limit{{Quota: n, Window: 24 * time.Hour}}}
}

// wrongFiles are formats of wrong files: %s is a good file without its last brace.
var wrongFiles = []string{
	"%s", // it ends early
	`%s, "policies": 7}`,
	`%s, "overrides": [{"policy": "file-a", "key": "k", "blocked": true, "unlimited": true}]}`,
	`%s, "overrides": [{"policy": "file-a", "key": "k", "limits": ["1 per 1h"]}, {"policy": "file-a", "key": "k", "blocked": true}]}`,
}

// writeFile replaces the file by its good version n, or by a wrong version of it.
func (r *run) writeFile(random *rand.Rand, n int64, wrong bool) {
	text := fmt.Sprintf(`{"policies": [{"name": "file-a", "limits": ["%d per 24h"]}, {"name": "file-b", "limits": ["%[1]d per 24h"]}]}`, runFirst+n)
	if wrong {
		text = fmt.Sprintf(wrongFiles[random.IntN(len(wrongFiles))], text[:len(text)-1])
	} else {
		r.inFile.Store(runFirst+n, true)
	}
	path := r.path
	if random.IntN(2) == 0 { // at once; otherwise a part of it may be read first
		path += ".new"
	}
	err := os.WriteFile(path, []byte(text), 0o600)
	if err == nil && path != r.path {
		err = os.Rename(path, r.path)
	}
	if err != nil {
		r.Fatal(err)
	}
}

// writeRedis makes the next version of Redis, a good one or a wrong one.
func (r *run) writeRedis(random *rand.Rand, wrong bool) {
	store := r.stores[random.IntN(2)]
	if wrong && random.IntN(2) == 0 { // the change is refused
		if _, err := store.Write(r.Context(), redispolicies.Change{Set: []*quota.Policy{under("remote-a", "remote-b", "k"), under("remote-b", "remote-a", "k")}}); !errors.Is(err, quota.ErrInvalid) {
			r.Errorf("a cycle: %v", err)
		}
		return
	}
	version := r.last.Load() + 1
	n := r.good[version-1].Load()
	if !wrong {
		n++
	}
	r.good[version].Store(n)
	r.last.Store(version)
	var is int64
	var err error
	if wrong {
		is, err = store.WriteText(r.Context(), "remote-b", `{"limits": ["10 pr 1m"]}`)
	} else {
		is, err = store.Write(r.Context(), redispolicies.Change{
			Set:             []*quota.Policy{daily("remote-a", runFirst+n), daily("remote-b", runFirst+n)},
			RemoveOverrides: []policies.Override{{Policy: "remote-a", Key: fmt.Sprint("client-", (n+runKeys-1)%runKeys)}},
			Override:        []policies.Override{{Policy: "remote-a", Key: fmt.Sprint("client-", n%runKeys), Blocked: true}},
		})
	}
	if err != nil || is != version {
		r.Errorf("version %d, %v; want %d", is, err, version)
	}
}

// A file and the policies in Redis are replaced ten times a second, half of the time by wrong
// versions, while processes decide, start and end, and one clock is an hour ahead. Every
// decision is explained by a version, no count starts afresh, nothing fails, and all processes
// have the last version after one look. -run-for makes it longer.
func TestReplacedUnderLoad(t *testing.T) {
	random := testseed.Rand(t, 0)
	r := &run{T: t, path: filepath.Join(t.TempDir(), "policies.json"), counts: memorybackend.NewDefault(), random: testseed.Locked(t, 1), done: make(chan struct{})}
	server := testserver.Redis(t)
	for range 2 {
		store, _, _ := open(t, server)
		r.stores = append(r.stores, store)
	}
	r.writeFile(random, 0, false)
	r.writeRedis(random, false)
	all := []*runner{r.start(0), r.start(time.Hour), r.start(0)}
	started := make(chan *runner, 1+*runFor/runEvery)
	var starts sync.WaitGroup

	const most = 12
	began, ticks := time.Now(), max(int64(*runFor/runEvery), 10)
	ticker := time.NewTicker(runEvery)
	defer ticker.Stop()
	for n := int64(1); n <= ticks && !t.Failed(); n++ {
		if n > 10 && time.Since(began) > *runFor { // on a machine that is too busy for the pace
			break
		}
		<-ticker.C
		r.writeFile(random, n, random.IntN(2) == 0)
		r.writeRedis(random, random.IntN(2) == 0)
		if n%5 == 0 && n/5 < most {
			starts.Go(func() { started <- r.start(0) }) // when the file is right
		}
		if n == 20 {
			all[2].close() // its takers continue with its policies
			all = all[:2]
		}
	}
	r.writeFile(random, ticks+1, false)
	r.writeRedis(random, false)
	starts.Wait()
	close(started)
	for p := range started {
		all = append(all, p)
	}
	close(r.done)
	r.takers.Wait()
	for i, p := range all {
		if !t.Failed() {
			r.checkLast(i, p, ticks+1)
		}
		p.close()
	}
	d, err := throttler.New(r.counts, nil).Peek(t.Context(), daily("file-a", runFirst).Charge("k"))
	if err != nil || d.Limit(0).Used != r.taken.Load() || r.taken.Load() == 0 {
		t.Errorf("%v, %v after %d takes", d, err, r.taken.Load())
	}
	t.Logf("%d takes in %d processes, and %d versions of Redis", r.taken.Load(), len(all), r.last.Load())
}

// checkLast checks that a process has the last versions after one look.
func (r *run) checkLast(i int, p *runner, file int64) {
	if err := errors.Join(p.file.Refresh(), p.Refresh(r.Context())); err != nil {
		r.Errorf("process %d: %v", i, err)
	}
	view := p.table.View()
	f, inRedis := view.Policy("file-a"), view.Policy("remote-a")
	last := r.last.Load()
	if f == nil || inRedis == nil || f.Limits[0].Quota != runFirst+file || inRedis.Limits[0].Quota != runFirst+r.good[last].Load() || p.version() != last {
		r.Errorf("process %d: %v, %v, version %d; want the last, %d", i, f, inRedis, p.version(), last)
	}
	for client := range runKeys {
		if _, by, _ := view.Resolve(r.Context(), daily("remote-a", 1), fmt.Sprint("client-", client), 0); (by != nil) != r.blocks(last, client) {
			r.Errorf("process %d: client %d has %+v", i, client, by)
		}
	}
}
