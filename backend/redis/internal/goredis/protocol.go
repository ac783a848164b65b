package goredis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// This file says so when a client uses TLS and the server doesn't, or the other way round. By
// itself such a connection hangs, or is reset.

const (
	hangs      = 200 * time.Millisecond // a dial that takes longer may wait for a server without TLS, which waits for a line
	lookWithin = 250 * time.Millisecond
)

// dialTLS returns a dialer with TLS by d.
func dialTLS(d *net.Dialer, config *tls.Config) dialFunc {
	dialer := &tls.Dialer{NetDialer: d, Config: config}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		noTLS := func(err error) error {
			return fmt.Errorf("the server at %s does not speak TLS; use redis:// in place of rediss://, tls: false, or no TLSConfig: %w", addr, err)
		}
		look := time.AfterFunc(hangs, func() {
			if speaksRESP(ctx, d, network, addr) {
				cancel(noTLS(errors.New("no reply to a TLS handshake")))
			}
		})
		defer look.Stop()
		conn, err := dialer.DialContext(ctx, network, addr)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.As(err, new(tls.RecordHeaderError)), hungUp(err) && speaksRESP(ctx, d, network, addr):
			return nil, noTLS(err)
		}
		return nil, err
	}
}

// wantsTLS returns the error of a connection without TLS to addr, made by d, that ended with
// err before any reply.
func wantsTLS(d *net.Dialer, network, addr string, err error) error {
	if hungUp(err) && speaksTLS(d, network, addr) {
		return fmt.Errorf("the server at %s speaks TLS; use rediss:// in place of redis://, tls: true, or TLSConfig: %w", addr, err)
	}
	return err
}

func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func speaksRESP(ctx context.Context, d *net.Dialer, network, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(lookWithin))
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	var reply [1]byte
	n, _ := conn.Read(reply[:])
	return n == 1 && (reply[0] == '+' || reply[0] == '-')
}

func speaksTLS(d *net.Dialer, network, addr string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lookWithin)
	defer cancel()
	conn, err := (&tls.Dialer{NetDialer: d, Config: &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // nothing is sent on it
	}}).DialContext(ctx, network, addr)
	if err == nil {
		_ = conn.Close()
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" // a TLS alert
}
