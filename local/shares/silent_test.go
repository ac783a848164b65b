package shares

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler/quota"
)

// silent is a transport that delivers messages unless it has an error.
type silent struct{ err error }

func (s *silent) Send(context.Context, string, []byte) ([]byte, error) { return nil, s.err }

// A member is logged once when it stops answering, once when it answers again, and not when the
// backend is closed.
func TestASilentMemberIsLogged(t *testing.T) {
	var log bytes.Buffer
	closed, end := context.WithCancel(t.Context())
	member := &silent{err: errors.New("connection refused")}
	o := observed{member, weirlog.New(slog.New(slog.NewTextHandler(&log, nil)), nil), closed}
	send := func() string {
		log.Reset()
		for range 10 {
			_, _ = o.Send(t.Context(), "b:7", nil)
		}
		return log.String()
	}
	if text := send(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "a member does not answer") || !strings.Contains(text, `backend=shares shard=b:7 server=member error="connection refused"`) {
		t.Errorf("while it does not answer: %s", text)
	}
	member.err = nil
	if text := send(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "answers again") {
		t.Errorf("when it answers again: %s", text)
	}
	end()
	member.err = context.Canceled
	if text := send(); text != "" {
		t.Errorf("when it is closed: %s", text)
	}
}

// Without an Observer, the default one has the events.
func TestNoObserverIsTheDefault(t *testing.T) {
	list := List{Epoch: 1, Members: []string{"127.0.0.1:1", "127.0.0.1:2"}}
	b, err := New(list.Members[0], list, &silent{errors.New("down")}, []*quota.Policy{tokens("p", 10, time.Second, 0)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	if b.opts.Observer == nil {
		t.Error("the Observer is nil; want the default, which logs")
	}
}
