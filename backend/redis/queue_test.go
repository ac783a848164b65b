package redisbackend

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir/backend/redis/internal/node"
	"github.com/weir-go/weir/internal/busy"
)

// A batch that passes over a decision whose time is over ends it: no later batch finds it.
func TestDroppedDecisionEnds(t *testing.T) {
	s := &node.Server{Answers: busy.NewAnswers()}
	asked := time.Now()
	s.Answers.Silent()
	j := &job{ctx: t.Context(), begun: asked, deadline: asked.Add(-time.Millisecond), done: make(chan struct{}, 1)}
	out := new(batch)
	b := &batcher{server: s, inFlight: []*batch{out}, waiting: []*job{j}}
	if b.fill(out) {
		t.Error("the batch has decisions to send")
	}
	select {
	case <-j.done:
		if err := j.err; !errors.Is(err, errWaited) {
			t.Errorf("%v, want that it waited for a server that is silent", err)
		}
	default:
		t.Error("it left the queue, and still waits")
	}
}
