package goredis

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
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
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, test.err) || IsIdleClosed(err) == test.isFault {
			t.Errorf("%s: error %v, a fault %t; want %v, %t", test.name, err, !IsIdleClosed(err), test.err, test.isFault)
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
		if _, err := c.Write([]byte("PING\r\n")); !errors.Is(err, test.err) || IsUnwritten(err) != test.unwritten {
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
