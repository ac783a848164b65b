package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// connection is a gRPC connection with one call at a time. It does only what the load generator
// needs: a client as expensive as grpc-go's would be slower than the measured service.
type connection struct {
	net.Conn
	buffered *bufio.Writer
	framer   *http2.Framer
	fields   []byte // the header fields of each call, encoded
	stream   uint32
}

// dial connects to a gRPC server, for calls of method.
func dial(addr, method string) (*connection, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	var fields bytes.Buffer
	encoder := hpack.NewEncoder(&fields)
	encoder.SetMaxDynamicTableSize(0) // the same bytes are valid in each call
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: addr}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		_ = encoder.WriteField(f) // memory does not fail
	}
	c := &connection{Conn: conn, buffered: bufio.NewWriter(conn), fields: fields.Bytes(), stream: 1}
	c.framer = http2.NewFramer(c.buffered, bufio.NewReader(conn))
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	// Written with the first call. A bufio.Writer repeats an error when it is flushed.
	_, _ = c.buffered.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings()
	_ = c.framer.WriteWindowUpdate(0, 1<<30) // more than the answers of a measurement
	return c, nil
}

// call sends a message, and returns the answer.
func (c *connection) call(message []byte) (answer []byte, err error) {
	stream := c.stream
	c.stream += 2
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.fields, EndHeaders: true})
	_ = c.framer.WriteData(stream, true, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)) //nolint:gosec // a request is short
	for {
		if err := c.buffered.Flush(); err != nil {
			return nil, err
		}
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			answer = append(answer, f.Data()...)
		case *http2.MetaHeadersFrame:
			if !f.StreamEnded() {
				continue
			}
			for _, field := range f.RegularFields() {
				if field.Name == "grpc-status" && field.Value != "0" {
					return nil, fmt.Errorf("grpc-status %q", field.Value)
				}
			}
			if len(answer) < 5 { // a flag for compression, and the length
				return nil, fmt.Errorf("the answer is no message: %d bytes", len(answer))
			}
			return answer[5:], nil
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = c.framer.WritePing(true, f.Data) // this client sends none
		case *http2.RSTStreamFrame:
			if f.StreamID == stream { // not of an earlier call, answered before it was read
				return nil, fmt.Errorf("the server reset the stream: %v", f.ErrCode)
			}
		case *http2.GoAwayFrame:
			return nil, fmt.Errorf("the server ends the connection: %v", f.ErrCode)
		}
	}
}
