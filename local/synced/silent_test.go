package synced

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

// silent is a root that answers unless it has an error.
type silent struct{ err error }

func (*silent) name() string      { return "eu" }
func (*silent) groupName() string { return "" }
func (s *silent) call(context.Context, []call) ([][]byte, error) {
	return nil, s.err
}

// A root is logged once when it stops answering, once when it answers again, and not when the
// backend is closed.
func TestASilentRootIsLogged(t *testing.T) {
	var log bytes.Buffer
	closed, end := context.WithCancel(t.Context())
	b := &Backend{opts: Options{Observer: weirlog.New(slog.New(slog.NewTextHandler(&log, nil)), nil)}, closed: closed}
	root := &silent{err: errors.New("connection refused")}
	a := &aggregator{server: root}
	sync := func() {
		for range 10 {
			_, _ = b.call(t.Context(), a)
		}
	}
	sync()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "a root does not answer") || !strings.Contains(text, `shard=eu server=root error="connection refused"`) {
		t.Errorf("while it does not answer: %s", text)
	}
	log.Reset()
	root.err = nil
	sync()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "answers again") {
		t.Errorf("when it answers again: %s", text)
	}
	log.Reset()
	end()
	root.err = context.Canceled
	if sync(); log.Len() > 0 {
		t.Errorf("when it is closed: %s", log.String())
	}
}

// warnings counts the warnings.
type warnings struct {
	observe.Nothing
	texts []string
}

func (w *warnings) Warned(e observe.Warned) { w.texts = append(w.texts, e.Text) }

// Decisions are degraded while no root of their group answers, also at the start, and one warning
// says so each time.
func TestDegradedWhileNoRootAnswers(t *testing.T) {
	observer := new(warnings)
	f := newFleet(t, 0, 2, Options{Observer: observer})
	for _, r := range f.roots {
		r.down = true
	}
	f.processes = append(f.processes, f.start(0))
	check := func(when string, degraded bool, warned int) {
		t.Helper()
		f.advance(f.elapsed + 20*DefaultSync)
		d := f.taking(0, perSecond, 1)
		settled, err := f.processes[0].throttler.Settle(t.Context(), d, 0)
		if err != nil {
			t.Fatal(err)
		}
		if d.Degraded != degraded || settled.Degraded != degraded || !d.Allowed || len(observer.texts) != warned {
			t.Errorf("%s: degraded is %v, and after a settlement %v, with the warnings %q; want %v and %d", when, d.Degraded, settled.Degraded, observer.texts, degraded, warned)
		}
	}
	check("at a start without roots", true, 1)
	f.roots[1].down = false
	check("with one of two roots", false, 1)
	f.roots[0].down = false
	check("with both", false, 1)
	f.roots[1].down = true
	check("with the other", false, 1)
	f.roots[0].down = true
	check("without roots again", true, 2)
}
