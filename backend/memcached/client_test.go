package memcachedbackend

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// pipeClient returns a client of a server that sends reply to each request and then
// hangs up.
func pipeClient(reply []byte) *Client {
	c := NewClient("pipe:1")
	c.DialContext = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			go func() { _, _ = io.Copy(io.Discard, server) }()
			_, _ = server.Write(reply)
		}()
		return client, nil
	}
	return c
}

// Whatever a server replies, gets returns only items that were asked for, of at most maxBytes
// each.
func FuzzReplies(f *testing.F) {
	for _, reply := range []string{
		"END\r\n", "VALUE a 0 3 1\r\nabc\r\nEND\r\n", "VALUE a 0 3 1\r\nabc\r\nVALUE b 7 0 18446744073709551615\r\n\r\nEND\r\n",
		"VALUE b 0 1 1\r\nx\r\nVALUE a 0 1 1\r\nx\r\nEND\r\n", "VALUE a 0 9 1\r\nabc\r\nEND\r\n", "STORED\r\n", "EXISTS\r\n",
		"SERVER_ERROR object too large for cache\r\n", "VALUE a 0 -3 1\r\n", "\r\n", "", "VALUE    \r\n",
	} {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		const maxBytes = 1024
		c := pipeClient(reply)
		defer c.Close()
		deadline := time.Now().Add(time.Minute)
		keys := []string{"a", "b", "c"}
		items, err := c.gets(deadline, keys, maxBytes)
		for i, item := range items {
			if len(item.value) > maxBytes || !item.found && item.value != nil {
				t.Errorf("%q, found %t, has %d bytes", keys[i], item.found, len(item.value))
			}
		}
		if err == nil && len(items) != len(keys) || err != nil && items != nil {
			t.Errorf("%d items, %v", len(items), err)
		}
		if written, err := c.swap(deadline, "a", stored{}, []byte("x"), 0); written && err != nil {
			t.Error("written, and an error")
		}
	})
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "VERSION 1.6\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}()
	c := NewClient(path)
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A connection that is in use when the client is closed is closed after its call.
func TestCloseDuringACall(t *testing.T) {
	c := pipeClient([]byte("VERSION 1.6\r\n"))
	err := c.call(time.Now().Add(10*time.Second), false, func(cn *conn) error {
		if err := c.Close(); err != nil {
			return err
		}
		_, err := cn.ask([]byte("version\r\n"))
		return err
	})
	if err != nil || len(c.idle) > 0 {
		t.Errorf("%v, and %d idle connections", err, len(c.idle))
	}
}

// Bytes that a server sends after a reply are never read as the reply to another call.
func TestMoreThanTheReply(t *testing.T) {
	c := pipeClient([]byte("END\r\nSTORED\r\n"))
	deadline := time.Now().Add(time.Minute)
	if _, err := c.gets(deadline, []string{"a"}, 1024); err != nil {
		t.Fatal(err)
	}
	if written, err := c.swap(deadline, "a", stored{}, nil, 0); written || err == nil {
		t.Errorf("written %t, %v; want an error, as of a new connection", written, err)
	}
}
