package measure

import (
	"io"
	"net"
	"time"
)

// packet is data on its way to a client, or the end of its connection if data is nil.
type packet struct {
	due    time.Time
	target net.Conn
	data   []byte
}

// Relay serves a slow network on a free port: it forwards a server's answers a round trip after
// they were received. It ends when stop is called, and connections end with their clients.
//
// Because the delay is constant, data leaves in the order of its arrival, and one queue and
// one goroutine serve all connections: that is so cheap that peers with many connections are
// not slowed.
func Relay(upstream string, roundTrip time.Duration) (addr string, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	queue := make(chan packet, 1<<16) // at 1 ms and 100,000 packets a second, 100 are on their way
	go func() {
		for p := range queue {
			if time.Sleep(time.Until(p.due)); p.data == nil {
				_ = p.target.Close()
			} else {
				_, _ = p.target.Write(p.data) // the connection's reader will notice an error
			}
		}
	}()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", upstream)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			}()
			go receive(server, client, roundTrip, queue)
		}
	}()
	return listener.Addr().String(), func() { _ = listener.Close() }, nil
}

func receive(source, target net.Conn, delay time.Duration, queue chan<- packet) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := source.Read(buffer)
		deadline := time.Now().Add(delay)
		if n > 0 {
			queue <- packet{deadline, target, append([]byte(nil), buffer[:n]...)}
		}
		if err != nil {
			queue <- packet{due: deadline, target: target}
			return
		}
	}
}
