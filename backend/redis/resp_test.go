package redisbackend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/throttler"
)

// sent is a connection that the server closed after it had sent these bytes.
type sent struct {
	failedConn
	io.Reader
}

func (s sent) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// The same bytes are passed on or held back however they are cut into reads.
func TestRepliesAreBounded(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	for _, test := range []struct {
		name, bytes string
		passed      int // how many of them; -1 for all
		reason      string
	}{
		{"status", "+OK\r\n", -1, ""},
		{"replies of a pipeline", "$3\r\nabc\r\n:1\r\n-ERR no\r\n$-1\r\n*-1\r\n_\r\n$0\r\n\r\n*0\r\n", -1, ""},
		{"an array of arrays", "*2\r\n*2\r\n:1\r\n:2\r\n*1\r\n$1\r\n*\r\n+OK\r\n", -1, ""},
		{"RESP3", "%1\r\n+a\r\n,1.5\r\n~1\r\n#t\r\n|1\r\n+ttl\r\n:3\r\n*1\r\n(12345\r\n=6\r\ntxt:ab\r\n>1\r\n+x\r\n!3\r\nERR\r\n", -1, ""},
		{"a string that looks like a reply", "$13\r\n*1000000000\r\n\r\n+OK\r\n", -1, ""},
		{"many large strings, each in its own reply", strings.Repeat("$1048576\r\n"+large+"\r\n", 10), -1, ""},
		{"a long line", "+" + large + "\r\n", -1, ""},

		{"an array of a billion", "+OK\r\n*1000000000\r\n", 5, "*10000000…"},
		{"a string of half a gigabyte", ":1\r\n$500000000\r\n", 4, "$50000000…"},
		{"a map", "%100000000\r\n", 0, "%10000000…"},
		{"a length of many digits", "*" + strings.Repeat("9", 1000), 0, "*9999999…"},
		{"an array that is too large in all", "*300000\r\n", 0, "a reply of more than 8388608 bytes"},
		{"pairs count twice", "%200000\r\n", 0, "a reply of more than 8388608 bytes"},
		{"arrays of arrays", strings.Repeat("*60000\r\n", 5), 4 * 8, "a reply of more than 8388608 bytes"},
		{"strings of an array", "*9\r\n" + strings.Repeat("$1048576\r\n"+large+"\r\n", 9), 4 + 7*(10+1<<20+2), "a reply of more than 8388608 bytes"},
		{"a line without end", "+" + strings.Repeat("x", maxReply+1), 0, "a reply of more than 8388608 bytes"},
		{"attributes without end", strings.Repeat("|0\r\n", maxReply/arrayCost), 4 * (maxReply / (arrayCost + 4)), "a reply of more than 8388608 bytes"},
		{"no RESP", "HTTP/1.1 400 Bad Request\r\n", 0, "a line that begins with 'H'"},
		{"no length", "*\r\n", 0, "* without a length"},
		{"a length of no number", "$1x\r\n", 0, "$ without a length"},
		{"a stream", "$?\r\n", 0, "$ without a length"},
		{"a length cut by a line end", "$1\r2\n", 0, "$ without a length"},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := []byte(test.bytes)
			if test.passed >= 0 {
				want = want[:test.passed]
			}
			for name, cut := range map[string]func(io.Reader) io.Reader{
				"whole": func(r io.Reader) io.Reader { return r }, "in halves": iotest.HalfReader, "byte by byte": iotest.OneByteReader,
			} {
				if name != "whole" && len(test.bytes) > 1<<16 {
					continue
				}
				got, err := io.ReadAll(boundReplies(sent{failedConn{}, cut(strings.NewReader(test.bytes))}, time.Second))
				if test.reason == "" && err != nil || test.reason != "" && (err == nil || !strings.HasSuffix(err.Error(), ": "+test.reason)) {
					t.Errorf("%s: error %v, want %q", name, err, test.reason)
				}
				if name == "whole" && test.reason != "" {
					continue // ReadAll's buffer grows, and cuts
				}
				if !bytes.HasPrefix(got, want) || test.reason == "" && len(got) > len(want) {
					t.Errorf("%s: passed on %d bytes, want at least the sound %d", name, len(got), len(want))
				}
				if i := bytes.IndexByte(got[min(len(want), len(got)):], '\n'); i >= 0 {
					t.Errorf("%s: passed on a line that is not sound", name)
				}
			}
		})
	}
}

// hostile returns a backend on a server that answers each request with answer.
func hostile(t testing.TB, answer []byte) *Backend {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	var mu sync.Mutex // go-redis may still dial when the test has ended
	var servers sync.WaitGroup
	t.Cleanup(func() { // go-redis does not close all connections
		mu.Lock()
		end()
		mu.Unlock()
		servers.Wait()
	})
	c, err := NewClient(&redis.UniversalOptions{
		Addrs: []string{"hostile:0"},
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			client, server := net.Pipe()
			context.AfterFunc(ctx, func() { _ = server.Close() })
			servers.Go(func() {
				defer server.Close()
				request := make([]byte, 64<<10)
				for {
					if _, err := server.Read(request); err != nil {
						return
					}
					if _, err := server.Write(answer); err != nil {
						return
					}
				}
			})
			return client, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	b, err := New([]Shard{{Name: "a", Primary: c}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// FuzzReplies checks that, whatever a server answers, a decision ends at its deadline, in
// bounded memory, without a panic.
func FuzzReplies(f *testing.F) {
	for _, answer := range []string{
		"*1000000000\r\n", "$500000000\r\n", "%4000000\r\n", "+OK\r\n", "-ERR no\r\n", "%0\r\n", "-NOSCRIPT no\r\n",
		strings.Repeat("*1\r\n", 2_000), strings.Repeat("|0\r\n", 2_000), ">2\r\n+message\r\n+x\r\n", "*-1\r\n", "$-1\r\n", "",
		"%1\r\n+proto\r\n:3\r\n", "_\r\n", "*260000\r\n" + strings.Repeat("_\r\n", 1000), "=3\r\ntxt\r\n", "*1\r\n*-7\r\n",
	} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		b := hostile(t, answer)
		policy := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 10, Window: time.Hour}}}
		th := throttler.New(b, nil)
		before := allocated()
		for name, decide := range map[string]func(context.Context, ...throttler.Charge) (throttler.Decision, error){"take": th.Take, "peek": th.Peek} {
			const deadline = 20 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			began := time.Now()
			_, err := decide(ctx, policy.Charge("alice"))
			cancel()
			if took := time.Since(began); took > deadline+2*time.Second { // a busy machine
				t.Errorf("a %s took %v, with a deadline of %v", name, took, deadline)
			}
			if err != nil && !errors.Is(err, throttler.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a %s: %v, want an error that wraps ErrUnavailable", name, err)
			}
		}
		if got := allocated() - before; got > 64<<20 {
			t.Errorf("%d bytes were allocated, want at most 64 MiB", got)
		}
	})
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// The end of a connection that was idle for long says nothing about the server; the end of
// another one, or of one that never answered, does.
func TestEndsOfConnections(t *testing.T) {
	for _, test := range []struct {
		name     string
		answered bool
		idle     time.Duration
		err      error
		isFault  bool
	}{
		{"idle for long", true, 2 * longIdle, io.EOF, false},
		{"idle for long, reset", true, 2 * longIdle, syscall.ECONNRESET, false},
		{"in use", true, 0, io.EOF, true},
		{"new", false, 2 * longIdle, io.EOF, true},
		{"a timeout", true, 2 * longIdle, os.ErrDeadlineExceeded, true},
	} {
		c := &boundedConn{Conn: ends{err: test.err}, answered: test.answered, last: time.Now().Add(-test.idle)}
		if _, err := c.Write([]byte("PING\r\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, test.err) || isFault(err) != test.isFault {
			t.Errorf("%s: error %v, a fault %t; want %v, %t", test.name, err, isFault(err), test.err, test.isFault)
		}
	}
}

// Only a request of which no byte was written is certainly not sent.
func TestUnwrittenRequests(t *testing.T) {
	for _, test := range []struct {
		name      string
		earlier   bool // a part was written before
		n         int
		err       error
		unwritten bool
	}{
		{"nothing", false, 0, syscall.EPIPE, true},
		{"a part", false, 3, syscall.EPIPE, false},
		{"nothing more", true, 0, syscall.EPIPE, false},
		{"late", false, 0, os.ErrDeadlineExceeded, false},
	} {
		c := &boundedConn{Conn: ends{n: test.n, writeErr: test.err}, answered: true, writing: test.earlier}
		if _, err := c.Write([]byte("PING\r\n")); !errors.Is(err, test.err) || errors.As(err, new(*unwrittenError)) != test.unwritten {
			t.Errorf("%s: error %v; want it unwritten: %t", test.name, err, test.unwritten)
		}
	}
}

// ends is a connection that ends with these errors.
type ends struct {
	failedConn
	n             int
	err, writeErr error
}

func (e ends) Read([]byte) (int, error) { return 0, e.err }

func (e ends) Write(p []byte) (int, error) {
	if e.writeErr != nil {
		return e.n, e.writeErr
	}
	return len(p), nil
}
