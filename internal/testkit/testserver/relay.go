package testserver

import (
	"net"
	"testing"
)

// Relay returns the address of a relay to upstream that ends with the test. It forwards the
// data of clients and of the server. When lose returns true for an answer, it closes both
// connections instead.
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

// pass copies data from src to dst until one of them hangs up, or lose returns true.
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
