package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wire is a gRPC connection with one call at a time. It does only what the load generator
// needs: a client as expensive as grpc-go's would take a core from the measured service.
type wire struct {
	conn   net.Conn
	out    *bufio.Writer
	framer *http2.Framer
	fields bytes.Buffer // of the next request, encoded
	encode *hpack.Encoder
	decode *hpack.Decoder
	status string // grpc-status of the call's trailers
	answer []byte // the message of the call's answer
	addr   string
	stream uint32
	unread uint32 // bytes received since the last WINDOW_UPDATE
}

// dial connects to a gRPC server.
func dial(addr string) (*wire, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	w := &wire{conn: conn, out: bufio.NewWriter(conn), addr: addr, stream: 1}
	w.framer = http2.NewFramer(w.out, bufio.NewReader(conn))
	w.framer.SetReuseFrames()
	w.encode = hpack.NewEncoder(&w.fields)
	w.decode = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			w.status = f.Value
		}
	})
	if _, err = w.out.WriteString(http2.ClientPreface); err == nil {
		err = w.framer.WriteSettings() // written with the first call
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return w, nil
}

// call sends a message, and returns the answer, which is valid until the next call.
func (w *wire) call(path string, message []byte) ([]byte, error) {
	w.fields.Reset()
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path},
		{Name: ":authority", Value: w.addr}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		if err := w.encode.WriteField(f); err != nil {
			return nil, err
		}
	}
	if err := w.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: w.stream, BlockFragment: w.fields.Bytes(), EndHeaders: true}); err != nil {
		return nil, err
	}
	if err := w.framer.WriteData(w.stream, true, message); err != nil {
		return nil, err
	}
	if err := w.out.Flush(); err != nil {
		return nil, err
	}
	w.status, w.answer = "", w.answer[:0]
	if err := w.read(); err != nil {
		return nil, err
	}
	w.stream += 2
	if w.status != "0" {
		return nil, fmt.Errorf("grpc-status %q", w.status)
	}
	return unframe(w.answer)
}

// read reads until the stream's end.
func (w *wire) read() error {
	for {
		frame, err := w.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *http2.DataFrame:
			w.answer = append(w.answer, f.Data()...)
			w.unread += f.Length
		case *http2.HeadersFrame:
			if _, err := w.decode.Write(f.HeaderBlockFragment()); err != nil {
				return err
			}
			if f.StreamEnded() {
				return w.acknowledge()
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = w.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = w.framer.WritePing(true, f.Data)
			}
		case *http2.RSTStreamFrame:
			if f.StreamID == w.stream { // not of an earlier call, answered before all of it was read
				return fmt.Errorf("the server reset the stream: %v", f.ErrCode)
			}
		case *http2.GoAwayFrame:
			return fmt.Errorf("the server ends the connection: %v", f.ErrCode)
		}
		if err == nil && w.out.Buffered() > 0 {
			err = w.out.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// acknowledge lets the server send more, with the next call.
func (w *wire) acknowledge() error {
	const window = 65535
	if w.unread < window/2 {
		return nil
	}
	n := w.unread
	w.unread = 0
	return w.framer.WriteWindowUpdate(0, n)
}

func (w *wire) close() { _ = w.conn.Close() }

// prefix is the length of the header of a message: a flag for compression, and the length.
const prefix = 5

// frame returns a message behind its header.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // a request is short
}

// unframe returns the single message of an answer.
func unframe(answer []byte) ([]byte, error) {
	if len(answer) < prefix || answer[0] != 0 || int(binary.BigEndian.Uint32(answer[1:])) != len(answer)-prefix {
		return nil, fmt.Errorf("the answer is no message: %d bytes", len(answer))
	}
	return answer[prefix:], nil
}
