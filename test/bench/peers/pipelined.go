package peers

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// MinimalScript decides about one fixed window in a packed string: the cheapest script that we
// know for one decision.
const MinimalScript = `
local stored = redis.call('GET', KEYS[1])
local now, quota, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if stored then
  local used, reset_at = struct.unpack('>I7I6', stored)
  if reset_at > now then
    if used >= quota then return {0, used, reset_at} end
    redis.call('SET', KEYS[1], struct.pack('>I7I6', used + 1, reset_at), 'KEEPTTL')
    return {1, used + 1, reset_at}
  end
end
local reset_at = now + window
redis.call('SET', KEYS[1], struct.pack('>I7I6', 1, reset_at), 'PX', window + 1000)
return {1, 1, reset_at}
`

var pipelinedScript = Peer{Name: "one script per decision, hand-pipelined", Role: Ceiling, Open: func(c Config) (*Limiter, error) {
	p, err := dialPipeline(c.Redis, 1)
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(&redis.Options{Addr: c.Redis})
	defer client.Close()
	sha, err := client.ScriptLoad(context.Background(), MinimalScript).Result()
	if err != nil {
		p.close()
		return nil, err
	}
	head := "*7\r\n$7\r\nEVALSHA\r\n$40\r\n" + sha + "\r\n$1\r\n1\r\n"
	tail := string(appendBulk(appendBulk(nil, strconv.FormatInt(c.Quota, 10)), strconv.FormatInt(c.Window.Milliseconds(), 10)))
	return &Limiter{Close: p.close, Take: func(_ context.Context, key string) (bool, error) {
		first, err := p.do(func(b []byte) []byte {
			b = appendBulk(append(b, head...), "script:", key)
			b = append(b, "$13\r\n"...)
			b = strconv.AppendInt(b, time.Now().UnixMilli(), 10)
			return append(append(b, "\r\n"...), tail...)
		})
		return first == 1, err
	}}, nil
}}

// pipelinedNative needs no script, because the key contains the window's number: all keys
// reset at once, and refused requests count.
var pipelinedNative = Peer{Name: "INCR and PEXPIRE, hand-pipelined", Role: Ceiling, Open: func(c Config) (*Limiter, error) {
	p, err := dialPipeline(c.Redis, 2)
	if err != nil {
		return nil, err
	}
	window := c.Window.Milliseconds()
	tail := string(append(appendBulk(nil, strconv.FormatInt(window, 10)), "$2\r\nNX\r\n"...))
	return &Limiter{Close: p.close, Take: func(_ context.Context, key string) (bool, error) {
		number := strconv.FormatInt(time.Now().UnixMilli()/window, 10)
		used, err := p.do(func(b []byte) []byte {
			b = appendBulk(append(b, "*2\r\n$4\r\nINCR\r\n"...), "native:", number, ":", key)
			b = appendBulk(append(b, "*4\r\n$7\r\nPEXPIRE\r\n"...), "native:", number, ":", key)
			return append(b, tail...)
		})
		return used <= c.Quota, err
	}}, nil
}}

// appendBulk appends the concatenation of parts as a bulk string.
func appendBulk(b []byte, parts ...string) []byte {
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, "\r\n"...)
	for _, part := range parts {
		b = append(b, part...)
	}
	return append(b, "\r\n"...)
}

// pipeline writes the commands of many goroutines to one connection. Each write sends all
// commands that arrived during the last one.
type pipeline struct {
	conn    net.Conn
	replies int // number of replies to a decision

	mu      sync.Mutex
	buf     []byte
	waiting []*call
	err     error // why the connection was closed

	wake chan struct{}  // holds one if buf is not empty
	sent chan []*call   // in the order of their replies
	done sync.WaitGroup // the two goroutines
	pool sync.Pool
}

type call struct {
	reply chan struct{} // receives one value
	first int64         // integer of the first reply
	err   error
}

func dialPipeline(addr string, replies int) (*pipeline, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &pipeline{conn: conn, replies: replies, wake: make(chan struct{}, 1), sent: make(chan []*call, 1024)}
	p.pool.New = func() any { return &call{reply: make(chan struct{}, 1)} }
	p.done.Go(p.write)
	p.done.Go(p.read)
	return p, nil
}

func (p *pipeline) close() {
	p.fail(net.ErrClosed)
	p.done.Wait()
}

// do sends the commands appended by put, and returns the first integer of the reply.
func (p *pipeline) do(put func([]byte) []byte) (int64, error) {
	c := p.pool.Get().(*call)
	p.mu.Lock()
	if p.err != nil {
		p.mu.Unlock()
		return 0, p.err
	}
	p.buf = put(p.buf)
	p.waiting = append(p.waiting, c)
	if len(p.waiting) == 1 {
		p.wake <- struct{}{}
	}
	p.mu.Unlock()
	<-c.reply
	first, err := c.first, c.err
	p.pool.Put(c)
	return first, err
}

func (p *pipeline) write() {
	defer close(p.sent)
	var spare []byte
	for range p.wake {
		p.mu.Lock()
		buf, calls := p.buf, p.waiting
		p.buf, p.waiting = spare[:0], nil
		err := p.err
		p.mu.Unlock()
		p.sent <- calls
		if err != nil {
			return
		}
		if _, err := p.conn.Write(buf); err != nil {
			p.fail(err)
		}
		spare = buf
	}
}

func (p *pipeline) read() {
	r := bufio.NewReaderSize(p.conn, 64<<10)
	var failed error
	for calls := range p.sent {
		for _, c := range calls {
			for i := range p.replies {
				if failed != nil {
					break
				}
				first, err := readReply(r)
				if err != nil {
					failed = err
					p.fail(err)
				}
				if i == 0 {
					c.first = first
				}
			}
			c.err = failed
			c.reply <- struct{}{}
		}
	}
}

// fail closes the connection and ends write. Calls after the first do nothing.
func (p *pipeline) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	p.err = err
	_ = p.conn.Close()
	if len(p.waiting) == 0 {
		p.wake <- struct{}{}
	}
}

// readReply reads an integer, or an array of integers, and returns the first.
func readReply(r *bufio.Reader) (int64, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	line = bytes.TrimSuffix(line, []byte("\r\n"))
	if len(line) == 0 {
		return 0, errors.New("empty reply")
	}
	n, err := strconv.ParseInt(string(line[1:]), 10, 64)
	switch {
	case line[0] == ':' && err == nil:
		return n, nil
	case line[0] != '*' || err != nil || n < 1:
		return 0, fmt.Errorf("reply %q", line)
	}
	first, err := readReply(r)
	for range n - 1 {
		if err == nil {
			_, err = readReply(r)
		}
	}
	return first, err
}
