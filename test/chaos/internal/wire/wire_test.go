package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo starts a server that echoes its input until the test ends.
func echo(t *testing.T) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return listener.Addr().String()
}

func newLink(t *testing.T) *Link {
	t.Helper()
	l, err := NewLink(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func dial(t *testing.T, l *Link) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// long is longer than any reply takes on the busiest machine.
const long = time.Minute

// say sends text and returns the reply.
func say(t *testing.T, c net.Conn, text string) (string, error) {
	t.Helper()
	return sayFor(t, long, c, text)
}

// sayFor is like say, but waits at most wait.
func sayFor(t *testing.T, wait time.Duration, c net.Conn, text string) (string, error) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	reply := make([]byte, len(text))
	n, err := io.ReadFull(c, reply)
	return string(reply[:n]), err
}

// ended reports whether err is want, or a form of it: if a link closes before it has read all
// of its input, the kernel resets the connection, and a later write fails with EPIPE.
func ended(err, want error) bool {
	hungUp := errors.Is(want, io.EOF) || errors.Is(want, io.ErrUnexpectedEOF)
	return errors.Is(err, want) || hungUp && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

func TestToxics(t *testing.T) {
	text := string(bytes.Repeat([]byte("0123456789"), 100))
	for _, test := range []struct {
		toxic Toxic
		bytes int // in the reply
		err   error
	}{
		{Toxic{Type: "latency", Attributes: Attributes{"latency": 20, "jitter": 5}}, 1000, nil},
		{Toxic{Type: "slicer", Attributes: Attributes{"average_size": 30, "size_variation": 10, "delay": 10}}, 1000, nil},
		{Toxic{Type: "bandwidth", Attributes: Attributes{"rate": 20}}, 1000, nil},
		{Toxic{Type: "slow_close", Attributes: Attributes{"delay": 50}}, 1000, nil},
		{Toxic{Type: "limit_data", Attributes: Attributes{"bytes": 77}}, 77, io.ErrUnexpectedEOF},
		{Toxic{Type: "limit_data", Upstream: true, Attributes: Attributes{"bytes": 77}}, -1, io.ErrUnexpectedEOF},
		{Toxic{Type: "timeout", Attributes: Attributes{"timeout": 0}}, 0, os.ErrDeadlineExceeded},
		{Toxic{Type: "timeout", Upstream: true, Attributes: Attributes{"timeout": 20}}, 0, io.EOF},
		{Toxic{Type: "reset_peer", Attributes: Attributes{"timeout": 1}}, 0, syscall.ECONNRESET},
	} {
		t.Run(test.toxic.String(), func(t *testing.T) {
			l := newLink(t)
			before := dial(t, l)
			if got, err := say(t, before, text); got != text {
				t.Fatalf("%q, %v", got, err)
			}
			l.Inject(test.toxic)
			for name, c := range map[string]net.Conn{"a connection that was open": before, "a new one": dial(t, l)} {
				wait := long
				if errors.Is(test.err, os.ErrDeadlineExceeded) {
					wait = 300 * time.Millisecond
				}
				got, err := sayFor(t, wait, c, text)
				if test.bytes >= 0 && len(got) != test.bytes || !ended(err, test.err) {
					t.Errorf("%s: %d bytes came back, %v; want %d, %v", name, len(got), err, test.bytes, test.err)
				}
			}
			l.Heal()
			if got, err := say(t, dial(t, l), text); got != text {
				t.Errorf("after it was healed: %q, %v", got, err)
			}
		})
	}
}

func TestCutMendAndRedirect(t *testing.T) {
	l := newLink(t)
	c := dial(t, l)
	if got, err := say(t, c, "hello"); got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	l.Cut()
	if got, err := say(t, c, "hello"); err == nil {
		t.Errorf("%q came through a link that is cut", got)
	}
	if c, err := net.Dial("tcp", l.Addr); err == nil {
		_ = c.Close()
		t.Error("a link that is cut accepts connections")
	}
	if err := l.Mend(); err != nil {
		t.Fatal(err)
	}
	c = dial(t, l)
	if got, err := say(t, c, "hello"); got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	l.Redirect(echo(t))
	if got, err := say(t, c, "hello"); err == nil {
		t.Errorf("%q came through a connection to the server before", got)
	}
	if got, err := say(t, dial(t, l), "hello"); got != "hello" {
		t.Errorf("%q, %v", got, err)
	}
}
