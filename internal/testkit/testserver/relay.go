package testserver

import (
	"net"
	"testing"
)

// Relay returns the address of a relay to upstream that ends with the test. It
// passes on what clients and the server say, but an answer for which lose
// returns true: there it hangs up on both instead.
func Relay(t testing.TB, upstream string, lose func(answer []byte) bool) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				_ = client.Close()
				return
			}
			go pass(server, client, func([]byte) bool { return false })
			go pass(client, server, lose)
		}
	}()
	return listener.Addr().String()
}

// pass passes on from src to dst until one of them hangs up, or lose says so.
func pass(dst, src net.Conn, lose func([]byte) bool) {
	defer dst.Close()
	defer src.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		if err != nil || lose(buf[:n]) {
			return
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			return
		}
	}
}
