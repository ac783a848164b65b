package weirlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-go/weir/internal/stats"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/quota"
)

var perMinute = &quota.Limit{Quota: 5, Window: time.Minute}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged is an Observer and its log.
type logged struct {
	*Observer
	text *buffer
}

// buffer is a bytes.Buffer that timers can log to.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// take returns the log since the last call.
func (b *buffer) take() string {
	synctest.Wait()
	text := b.String()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Reset()
	return text
}

func newLogged(options *Options) *logged {
	text := new(buffer)
	return &logged{New(slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{ReplaceAttr: withoutTime})), options), text}
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// want fails the test unless these lines were logged since the last call. Time moves in a
// bubble of package synctest.
func (l *logged) want(t *testing.T, lines ...string) {
	t.Helper()
	got := l.text.take()
	want := ""
	for _, line := range lines {
		want += line + "\n"
	}
	if got != want {
		t.Errorf("logged\n%swant\n%s", got, want)
	}
}

func TestServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		primary := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"}
		l.Checked(primary)
		l.want(t)

		primary.Open, primary.Err = true, errors.New("i/o timeout")
		l.Checked(primary)
		l.Checked(primary)
		l.want(t, `level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server=primary error="i/o timeout"`)
		time.Sleep(1500 * time.Millisecond)
		primary.Open, primary.Err = false, nil
		l.Checked(primary)
		l.Checked(primary)
		l.want(t, `level=INFO msg="rate limit: a server answers again" backend=redisbackend shard=a server=primary lasted=1.5s`)

		replica := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Cut: true, Lag: 3 * time.Second}
		l.Checked(replica)
		l.want(t, `level=WARN msg="rate limit: a replica is cut off from its primary, and is not asked" backend=redisbackend shard=a server="replica 0" lag=3s`)
		l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Open: true}) // not about the primary
		l.want(t, `level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server="replica 0"`)
		l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true})
		l.want(t,
			`level=INFO msg="rate limit: a server answers again" backend=redisbackend shard=a server="replica 0" lasted=0s`,
			`level=INFO msg="rate limit: a replica has its primary again" backend=redisbackend shard=a server="replica 0" lasted=0s lag=0s`)
		time.Sleep(silentEvery)
		l.Checked(primary)
		l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true})
		l.want(t)
		if len(l.servers.byName) != 0 {
			t.Errorf("%d servers are remembered although all is well", len(l.servers.byName))
		}
	})
}

// A difference of clocks is logged once, and its end once, when it is well below the
// maximum.
func TestSkew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		primary := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary", SkewKnown: true, MaxSkew: 5 * time.Second}
		check := func(skew time.Duration, lines ...string) {
			t.Helper()
			primary.Skew = skew
			l.Checked(primary)
			l.Checked(primary)
			l.want(t, lines...)
		}
		check(5 * time.Second)
		check(-6*time.Second, `level=WARN msg="rate limit: this process' clock and a server's differ by more than is good for limits; synchronize them" backend=redisbackend shard=a server=primary ahead=-6s limit=5s`)
		check(4900 * time.Millisecond)
		time.Sleep(time.Minute)
		check(4*time.Second, `level=INFO msg="rate limit: this process' clock and a server's are close again" backend=redisbackend shard=a server=primary lasted=1m0s ahead=4s limit=5s`)
		check(time.Second)
	})
}

// If a server stops and answers in turn, one line in 10 s has the count.
func TestFlappingServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		primary := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"}
		for i := range 100 { // in 10 s
			primary.Open = i%2 == 0
			l.Checked(primary)
			l.Checked(primary)
			time.Sleep(silentEvery / 100)
		}
		l.want(t,
			`level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server=primary`,
			`level=INFO msg="rate limit: a server answers again" backend=redisbackend shard=a server=primary lasted=100ms`)
		primary.Open = true
		l.Checked(primary)
		l.want(t, `level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server=primary times=50`)
	})
}

func TestRefusalsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		refuse := func(n int) {
			for range n {
				l.Decided(t.Context(), observe.Decided{Op: observe.OpTake, Policy: "core", Limit: 1, Outcome: observe.OutcomeRefused, Binding: perMinute})
			}
		}
		refuse(1000)
		l.want(t, `level=INFO msg="rate limit: refusals" policy=core limit="5 per 1m" count=1`)
		time.Sleep(time.Minute)
		l.want(t, `level=INFO msg="rate limit: refusals" policy=core limit="5 per 1m" count=999`)
		refuse(10)
		l.want(t)
		time.Sleep(time.Minute)
		l.want(t, `level=INFO msg="rate limit: refusals" policy=core limit="5 per 1m" count=10`)
		time.Sleep(time.Minute)
		l.Decided(t.Context(), observe.Decided{Op: observe.OpPeek, Policy: "core", Limit: 1, Outcome: observe.OutcomeRefused, Binding: perMinute})
		l.want(t)
		l.Decided(t.Context(), observe.Decided{Policy: "core", Degraded: true})
		l.want(t, `level=WARN msg="rate limit: decisions without the shared counts" policy=core count=1`)
	})
}

func TestMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		for range 3 {
			l.Moved(observe.Moved{From: "a", To: "b"})
			l.Moved(observe.Moved{From: "a", To: "b", Lost: true})
			l.Moved(observe.Moved{From: "a", To: "b", Err: errors.New(strings.Repeat("x", 1000))})
		}
		l.want(t,
			`level=WARN msg="rate limit: counts began at zero, because the backend that had them did not answer" from=a to=b count=1`,
			`level=WARN msg="rate limit: counts did not move" from=a to=b count=1 error=`+strings.Repeat("x", 200)+`…`)
	})
}

// The first failure of a shard and cause is logged at once, further failures once a
// minute, and their end after a minute without failures.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		refused := observe.Failed{Backend: "redisbackend", Shard: "a", Cause: "connection refused", Policy: "core"}
		closed := refused
		closed.Policy, closed.Result = "search", observe.ResultAnswered503
		for range 2 * 60 {
			for range 10 {
				l.Failed(refused)
				l.Failed(closed)
			}
			time.Sleep(500 * time.Millisecond)
			l.Failed(observe.Failed{Cause: observe.CauseInvalid, Detail: "cost is -1", Result: observe.ResultAnswered500})
			time.Sleep(499 * time.Millisecond) // less than a second in all: lines come between failures
		}
		time.Sleep(time.Second)
		l.want(t,
			`level=WARN msg="rate limit: failures" backend=redisbackend shard=a cause="connection refused" count=1 policies=[core] served_without_limit=1`,
			`level=ERROR msg="rate limit: failures" cause="invalid argument" count=1 policies=[] answered_500=1 error="cost is -1"`,
			`level=WARN msg="rate limit: failures" backend=redisbackend shard=a cause="connection refused" count=1219 policies="[core search]" served_without_limit=609 answered_503=610`,
			`level=ERROR msg="rate limit: failures" cause="invalid argument" count=60 policies=[] answered_500=60 error="cost is -1"`,
			`level=WARN msg="rate limit: failures" backend=redisbackend shard=a cause="connection refused" count=1180 policies="[core search]" served_without_limit=590 answered_503=590`,
			`level=ERROR msg="rate limit: failures" cause="invalid argument" count=59 policies=[] answered_500=59 error="cost is -1"`)
		time.Sleep(2 * time.Minute)
		l.want(t,
			`level=INFO msg="rate limit: failures are over" backend=redisbackend shard=a cause="connection refused" count=2400 lasted=1m58.881s`,
			`level=INFO msg="rate limit: failures are over" cause="invalid argument" count=120 lasted=1m58.881s`)
		if n := len(l.samples[failed].Values()); n != 0 {
			t.Errorf("%d kinds of failures are remembered although they are over", n)
		}
		l.Failed(refused)
		l.want(t, `level=WARN msg="rate limit: failures" backend=redisbackend shard=a cause="connection refused" count=1 policies=[core] served_without_limit=1`)
		for r := range observe.Results {
			l.Failed(observe.Failed{Cause: "x", Result: observe.Result(r)})
		}
	})
}

// A server that varies the causes in its replies does not fill the log. Failures
// without a line are counted.
func TestManyCausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(nil)
		for i := range 10 * maxSamples {
			l.Failed(observe.Failed{Cause: fmt.Sprint("E", i)})
		}
		if lines := strings.Count(l.text.take(), "\n"); lines != 60 {
			t.Errorf("%d lines at once; 60 are the most in a minute", lines)
		}
		if n := len(l.samples[failed].Values()); n != maxSamples {
			t.Errorf("%d causes are kept; %d is the most", n, maxSamples)
		}
		time.Sleep(time.Hour)
		if over := regexp.MustCompile(`failures are over" cause=\(others\) count=(\d+)`).FindStringSubmatch(l.text.take()); over == nil || over[1] != fmt.Sprint(10*maxSamples-maxSamples+1) {
			t.Errorf("the end of the other causes is %q, want %d of them", over, 10*maxSamples-maxSamples+1)
		}
	})
}

func TestWarnings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLogged(&Options{MaxLines: 1})
		l.Warned(observe.Warned{Text: "a thing happens", Policy: "core", Hint: "do this"})
		l.Warned(observe.Warned{Text: "another does", Hint: "do that"})
		l.want(t,
			`level=WARN msg="rate limit: a thing happens" policy=core hint="do this"`,
			`level=WARN msg="rate limit: another does" hint="do that"`)
	})
}

// Many servers that stop and answer in turn, and many policies that refuse, must not fill
// the log. Problems that last must be logged in the end.
func TestLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, servers = 60, 100
		l := newLogged(nil)
		check := func(i int, open bool) {
			l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: fmt.Sprint(i), Open: open})
		}
		for tenth := range 10*60 - 1 { // less than a minute, since the next one has more lines
			for i := range servers {
				check(i, tenth%2 == 0)
				l.Decided(context.Background(), observe.Decided{Policy: fmt.Sprint("p", tenth, i), Outcome: observe.OutcomeRefused})
			}
			time.Sleep(100 * time.Millisecond)
		}
		if lines := strings.Count(l.text.take(), "\n"); lines > most || lines == 0 {
			t.Errorf("%d lines in a minute; %d is the most", lines, most)
		}
		if n := len(l.samples[refused].Values()); n > maxSamples {
			t.Errorf("%d samples are kept; %d is the most", n, maxSamples)
		}
		for range 3 { // minutes
			for i := range servers {
				check(i, true)
			}
			time.Sleep(time.Minute)
		}
		for i := range servers {
			if since := l.servers.byName[stats.ServerName{Backend: "redisbackend", Shard: "a", Server: fmt.Sprint(i)}]; since == nil || since.silent.since.IsZero() {
				t.Errorf("that server %d does not answer was not logged", i)
			}
		}
	})
}

func TestRememberedServersAreBounded(t *testing.T) {
	l := newLogged(&Options{MaxLines: 1 << 30})
	for i := range 10 * maxServers {
		l.Checked(observe.Checked{Server: fmt.Sprint(i), Open: true})
	}
	if n := len(l.servers.byName); n > maxServers {
		t.Errorf("%d servers are remembered; %d is the most", n, maxServers)
	}
}

// Each refusal is counted in one line, even if it comes while a line is written.
func TestManyGoroutines(t *testing.T) {
	text := new(buffer)
	o := New(slog.New(slog.NewTextHandler(text, nil)), &Options{Every: time.Nanosecond, MaxLines: 1 << 30})
	const each, goroutines = 500, 8
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range each {
				o.Decided(context.Background(), observe.Decided{Policy: "core", Outcome: observe.OutcomeRefused})
				o.Checked(observe.Checked{Server: "primary", Open: i%2 == 0})
			}
		})
	}
	wg.Wait()
	for total, ends := 0, time.Now().Add(10*time.Second); total != each*goroutines; {
		if time.Now().After(ends) {
			t.Fatalf("the lines count %d refusals of %d", total, each*goroutines)
		}
		runtime.Gosched() // the last lines come by timers
		total = 0
		for line := range strings.Lines(text.String()) {
			if _, count, ok := strings.Cut(line, "count="); ok {
				n := 0
				_, _ = fmt.Sscan(count, &n)
				total += n
			}
		}
	}
}

// A refusal that is not logged allocates nothing.
func TestNoAllocations(t *testing.T) {
	for name, log := range map[string]*slog.Logger{
		"sampled": slog.New(slog.NewTextHandler(new(bytes.Buffer), nil)), "off": slog.New(slog.DiscardHandler),
	} {
		o := New(log, nil)
		refuse := func() {
			o.Decided(context.Background(), observe.Decided{Policy: "core", Outcome: observe.OutcomeRefused})
		}
		refuse()
		if n := testing.AllocsPerRun(1000, refuse); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
