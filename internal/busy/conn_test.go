package busy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if client, err = net.Dial("tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// overTLS returns both ends after a handshake.
func overTLS(t *testing.T, client, server net.Conn) (net.Conn, net.Conn) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS() // makes the certificate
	s.Close()
	c, e := tls.Client(client, &tls.Config{InsecureSkipVerify: true}), tls.Server(server, s.TLS)
	shaken := make(chan error, 1)
	go func() { shaken <- e.HandshakeContext(context.Background()) }()
	if err := errors.Join(c.HandshakeContext(t.Context()), <-shaken); err != nil {
		t.Fatal(err)
	}
	return c, e
}

// A reply that has arrived is read, even after the deadline.
func TestALateProcessReadsWhatHasCome(t *testing.T) {
	for name, over := range map[string]func(*testing.T, net.Conn, net.Conn) (net.Conn, net.Conn){
		"TCP": func(_ *testing.T, c, s net.Conn) (net.Conn, net.Conn) { return c, s },
		"TLS": overTLS,
	} {
		t.Run(name, func(t *testing.T) {
			inner, server := pair(t)
			inner, server = over(t, inner, server)
			c := Conn(inner, LeastTime)
			if err := c.SetReadDeadline(time.Now().Add(LeastTime)); err != nil {
				t.Fatal(err)
			}
			if _, err := server.Write([]byte("PONG")); err != nil {
				t.Fatal(err)
			}
			if err := inner.SetReadDeadline(time.Unix(1, 0)); err != nil { // it has passed by now
				t.Fatal(err)
			}
			got := make([]byte, 4)
			if _, err := io.ReadFull(c, got); err != nil || string(got) != "PONG" {
				t.Errorf("read %q, %v; want the reply, which was there", got, err)
			}
		})
	}
}

func TestSilence(t *testing.T) {
	inner, _ := pair(t)
	c := Conn(inner, LeastTime)
	if err := c.SetDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	if !errors.As(err, new(*Silence)) || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a server that sends nothing: %v; want Silence, which is a timeout", err)
	}
}

// fake is a connection with reads that time out, each late after its deadline.
type fake struct {
	net.Conn
	late            time.Duration
	deadline, write time.Time
	reads           int
	answersAt       int // number of the read that returns the reply
}

func (f *fake) Read(p []byte) (int, error) {
	if f.reads++; f.reads == f.answersAt {
		return copy(p, "x"), nil
	}
	time.Sleep(time.Until(f.deadline) + f.late)
	return 0, os.ErrDeadlineExceeded
}
func (f *fake) SetReadDeadline(t time.Time) error  { f.deadline = t; return nil }
func (f *fake) SetWriteDeadline(t time.Time) error { f.write = t; return nil }

// A process that is late each time reads again several times before it reports silence.
func TestALateProcessLooksAgain(t *testing.T) {
	f := &fake{late: 2 * lateness, answersAt: 8}
	c := Conn(f, LeastTime)
	if err := c.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("after %d reads: %d, %v; want the reply of read %d", f.reads, n, err, f.answersAt)
	}
}

// The number of these reads is bounded.
func TestLooksHaveAnEnd(t *testing.T) {
	f := &fake{late: 2 * lateness}
	c := Conn(f, LeastTime)
	if _, err := c.Read(make([]byte, 1)); !errors.As(err, new(*Silence)) || f.reads != maxLooks+1 {
		t.Errorf("%v after %d reads; want Silence after %d", err, f.reads, maxLooks+1)
	}
}

// Time that this process spent before a read or write is not the server's.
func TestDeadlinesThatHavePassed(t *testing.T) {
	f := new(fake)
	c := Conn(f, 30*time.Millisecond)
	for _, test := range []struct{ left, want time.Duration }{
		{-time.Second, 30 * time.Millisecond}, {0, 30 * time.Millisecond}, {soon / 2, 30 * time.Millisecond}, {time.Hour, time.Hour},
	} {
		now := time.Now()
		if err := errors.Join(c.SetReadDeadline(now.Add(test.left)), c.SetWriteDeadline(now.Add(test.left))); err != nil {
			t.Fatal(err)
		}
		for _, got := range []time.Time{f.deadline, f.write} {
			if got.Before(now.Add(test.want)) {
				t.Errorf("a deadline in %v is one in %v, want %v", test.left, got.Sub(now), test.want)
			}
		}
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil || !f.deadline.IsZero() {
		t.Errorf("no deadline is %v, %v; want none", f.deadline, err)
	}
}
