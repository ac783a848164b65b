package synced

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

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
