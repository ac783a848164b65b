//go:build unix

package goredis

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
)

// interrupted is a connection whose first read begins after its deadline. Later ones read to
// its end and return no data, as in TLS that has only its own messages left.
type interrupted struct {
	net.Conn
	late bool
}

func (c *interrupted) Read([]byte) (int, error) {
	if !c.late {
		c.late = true
		return 0, os.ErrDeadlineExceeded
	}
	if _, err := io.Copy(io.Discard, c.Conn); err != nil {
		return 0, err
	}
	return 0, io.EOF
}

// A pause of the process between the deadline and the read hides no end of a connection.
func TestPauseHidesNoEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Write([]byte("goodbye")); err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	socket := client.(*net.TCPConn)
	for readable := false; !readable; {
		if readable, err = isReadable(socket); err != nil {
			t.Fatal(err)
		}
	}
	look := tlsLook{&tlsSocket{tls: &interrupted{Conn: socket}, raw: socket}}
	if err := look.Read(nil); !errors.Is(err, io.EOF) {
		t.Errorf("error %v, want EOF", err)
	}
}
