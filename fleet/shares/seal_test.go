package shares

import (
	"strconv"
	"testing"
	"time"
)

// However many messages come, each is accepted once, and memory is bounded.
func TestManyMessages(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	c := challenges{every: time.Minute}
	_, known := c.accept("", "", now)
	first := known
	for i := range 5*maxNonces/2 + 1 {
		nonce := strconv.Itoa(i)
		ok, latest := c.accept(known, nonce, now)
		if !ok && latest != "" { // as a sender does
			known = latest
			ok, _ = c.accept(known, nonce, now)
		}
		if !ok {
			t.Fatalf("message %d is refused", i)
		}
		if ok, _ := c.accept(known, nonce, now); ok {
			t.Fatalf("message %d is accepted twice", i)
		}
		if n := len(c.latest.nonces) + len(c.last.nonces); n > 2*maxNonces {
			t.Fatalf("%d nonces are remembered; the most is %d", n, 2*maxNonces)
		}
	}
	if ok, _ := c.accept(first, "0", now); ok || known == first {
		t.Error("the first message is accepted again")
	}
}
