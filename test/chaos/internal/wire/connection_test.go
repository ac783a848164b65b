package wire

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Data after a toxic goes through it, also if both were waiting.
func TestWhatComesAfterAToxicGoesThroughIt(t *testing.T) {
	for range 20 { // the order is random
		passed, err := afterLimit()
		if err != nil {
			t.Fatal(err)
		}
		if passed != "before" {
			t.Fatalf("%q came through a link that passes on nothing since the first part", passed)
		}
	}
}

// afterLimit returns the output of a link that is slow to forward the first of two parts, and
// gets a limit of no more bytes in between.
func afterLimit() (string, error) {
	in, src := net.Pipe()
	dst, out := net.Pipe()
	c := newConnection(new(net.TCPConn), new(net.TCPConn))
	var all sync.WaitGroup
	all.Go(func() {
		c.way(&all, dst, src, c.down)
		_ = dst.Close()
		_ = src.Close()
	})
	defer all.Wait()
	defer in.Close()
	if _, err := in.Write([]byte("before")); err != nil {
		return "", err
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil { // the way is forwarding the rest
		return "", err
	}
	c.poison([]Toxic{{Type: "limit_data", Attributes: Attributes{"bytes": 0}}})
	if _, err := in.Write([]byte("after")); err != nil { // the way has read it, and waits
		return "", err
	}
	_ = in.Close()
	time.Sleep(time.Millisecond) // both wait for the way now; otherwise the test proves nothing
	rest, err := io.ReadAll(out)
	return string(first) + string(rest), err
}
