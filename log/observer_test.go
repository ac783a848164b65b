package weirlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logged is an Observer at a time of the test's, and what it logged.
type logged struct {
	*Observer
	text *bytes.Buffer
	at   time.Time
}

func newLogged(options *Options) *logged {
	text := new(bytes.Buffer)
	l := &logged{text: text, at: time.Unix(1_800_000_000, 0)}
	l.Observer = New(slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{ReplaceAttr: withoutTime})), options)
	l.now = func() time.Time { return l.at }
	return l
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// want fails the test unless these lines were logged since the last call.
func (l *logged) want(t *testing.T, lines ...string) {
	t.Helper()
	got := l.text.String()
	l.text.Reset()
	want := ""
	for _, line := range lines {
		want += line + "\n"
	}
	if got != want {
		t.Errorf("logged\n%swant\n%s", got, want)
	}
}

func TestServers(t *testing.T) {
	l := newLogged(nil)
	primary := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"}
	l.Checked(primary)
	l.want(t)

	primary.Open, primary.Err = true, errors.New("i/o timeout")
	l.Checked(primary)
	l.Checked(primary)
	l.want(t, `level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server=primary error="i/o timeout"`)
	l.at = l.at.Add(1500 * time.Millisecond)
	primary.Open, primary.Err = false, nil
	l.Checked(primary)
	l.Checked(primary)
	l.want(t, `level=INFO msg="rate limit: a server answers again" backend=redisbackend shard=a server=primary lasted=1.5s`)

	replica := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Cut: true, Lag: 3 * time.Second}
	l.Checked(replica)
	l.want(t, `level=WARN msg="rate limit: a replica is cut off from its primary, and is not asked" backend=redisbackend shard=a server="replica 0" lag=3s`)
	l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true, Open: true}) // says nothing of the primary
	l.want(t, `level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server="replica 0"`)
	l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true})
	l.want(t,
		`level=INFO msg="rate limit: a server answers again" backend=redisbackend shard=a server="replica 0" lasted=0s`,
		`level=INFO msg="rate limit: a replica has its primary again" backend=redisbackend shard=a server="replica 0" lasted=0s lag=0s`)
	l.at = l.at.Add(silentEvery)
	l.Checked(primary)
	l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: "replica 0", Replica: true})
	l.want(t)
	if len(l.servers.all) != 0 {
		t.Errorf("%d servers are remembered although all is well", len(l.servers.all))
	}
}

// Of a server that stops and answers in turn, one line in 10 s has the count.
func TestFlappingServer(t *testing.T) {
	l := newLogged(nil)
	primary := observe.Checked{Backend: "redisbackend", Shard: "a", Server: "primary"}
	for i := range 100 { // of 10 s
		primary.Open = i%2 == 0
		l.Checked(primary)
		l.Checked(primary)
		l.at = l.at.Add(silentEvery / 100)
	}
	l.want(t,
		`level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server=primary`,
		`level=INFO msg="rate limit: a server answers again" backend=redisbackend shard=a server=primary lasted=100ms`)
	primary.Open = true
	l.Checked(primary)
	l.want(t, `level=WARN msg="rate limit: a server does not answer, and is sent nothing" backend=redisbackend shard=a server=primary times=50`)
}

func TestRefusalsAreSampled(t *testing.T) {
	l := newLogged(nil)
	th := throttler.New(memorybackend.NewDefault(), &throttler.Options{Observer: l})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}, {Quota: 1, Window: time.Minute}}}
	take := func(n int) {
		for range n {
			_, _ = th.Take(t.Context(), core.Charge("secret"))
		}
	}
	take(1)
	l.want(t)
	take(1000)
	l.want(t, `level=INFO msg="rate limit: refusals" policy=core limit=1 count=1`)
	l.at = l.at.Add(time.Minute)
	take(10)
	l.want(t, `level=INFO msg="rate limit: refusals" policy=core limit=1 count=1000`)
	_, _ = th.Peek(t.Context(), core.Charge("secret"))
	l.Decided(t.Context(), observe.Decided{Policy: "core", Degraded: true})
	l.want(t, `level=WARN msg="rate limit: decisions without the shared counts" policy=core count=1`)
}

func TestMoves(t *testing.T) {
	l := newLogged(nil)
	for range 3 {
		l.Moved(observe.Moved{From: "a", To: "b"})
		l.Moved(observe.Moved{From: "a", To: "b", Lost: true})
		l.Moved(observe.Moved{From: "a", To: "b", Err: errors.New(strings.Repeat("x", 1000))})
	}
	l.want(t,
		`level=WARN msg="rate limit: counts began at zero, because the backend that had them did not answer" from=a to=b count=1`,
		`level=WARN msg="rate limit: counts did not move" from=a to=b count=1 error=`+strings.Repeat("x", 200)+`…`)
}

// A thousand servers that come and go, and ten thousand policies that refuse, must not
// fill the log; and what is wrong in the end must be logged in the end.
func TestLinesAreBounded(t *testing.T) {
	const most, servers = 60, 100
	l := newLogged(nil)
	check := func(i int, open bool) {
		l.Checked(observe.Checked{Backend: "redisbackend", Shard: "a", Server: fmt.Sprint(i), Open: open})
	}
	for tenth := range 10 * 60 {
		for i := range servers {
			check(i, tenth%2 == 0)
			l.Decided(context.Background(), observe.Decided{Policy: fmt.Sprint("p", tenth, i), Outcome: observe.OutcomeRefused})
		}
		l.at = l.at.Add(100 * time.Millisecond)
	}
	if lines := strings.Count(l.text.String(), "\n"); lines > most || lines == 0 {
		t.Errorf("%d lines in a minute; %d is the most", lines, most)
	}
	if n := len(*l.samples.all.Load()); n > maxSamples {
		t.Errorf("%d samples are kept; %d is the most", n, maxSamples)
	}
	l.text.Reset()
	for range 3 { // minutes
		for i := range servers {
			check(i, true)
		}
		l.at = l.at.Add(time.Minute)
	}
	for i := range servers {
		if since := l.servers.all[serverKey{"redisbackend", "a", fmt.Sprint(i)}]; since == nil || since.silent.IsZero() {
			t.Errorf("that server %d does not answer was not logged", i)
		}
	}
}

func TestRememberedServersAreBounded(t *testing.T) {
	l := newLogged(&Options{MaxLines: 1 << 30})
	for i := range 10 * maxServers {
		l.Checked(observe.Checked{Server: fmt.Sprint(i), Open: true})
	}
	if n := len(l.servers.all); n > maxServers {
		t.Errorf("%d servers are remembered; %d is the most", n, maxServers)
	}
}

func TestManyGoroutines(t *testing.T) {
	var text bytes.Buffer
	o := New(slog.New(slog.NewTextHandler(&text, nil)), &Options{Every: time.Nanosecond, MaxLines: 1 << 30})
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
	o.Decided(context.Background(), observe.Decided{Policy: "core", Outcome: observe.OutcomeRefused})
	total := 0
	for line := range strings.Lines(text.String()) {
		if _, count, ok := strings.Cut(line, "count="); ok {
			n := 0
			_, _ = fmt.Sscan(count, &n)
			total += n
		}
	}
	if total != each*goroutines+1 {
		t.Errorf("the lines count %d refusals of %d", total, each*goroutines+1)
	}
}

// A refusal that is not logged costs next to nothing.
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
