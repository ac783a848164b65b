package weirgrpc

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Stream is a grpc.StreamServerInterceptor.
func (l *Limiter) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	d, letGo, refused := l.admit(ss.Context(), info.FullMethod)
	if refused != nil {
		ss.SetTrailer(refused.trailer)
		return refused.err
	}
	s := &stream{ServerStream: ss, l: l, method: info.FullMethod, rates: rates(d)}
	err = errPanicked
	defer func() {
		letGo()
		if refused := s.refused.Load(); refused != nil {
			l.settle(ss.Context(), info.FullMethod, d, nil) // nothing is free
			ss.SetTrailer(refused.trailer)
			err = refused.err
			return
		}
		after := rates(l.settle(ss.Context(), info.FullMethod, d, err))
		s.report.Do(func() { ss.SetTrailer(after) })
	}()
	return handler(srv, s)
}

// stream is a stream that has been charged.
type stream struct {
	grpc.ServerStream
	l       *Limiter
	method  string
	rates   metadata.MD
	report  sync.Once // of rates
	began   bool      // the first message was received; the charge of the start covers it
	refused atomic.Pointer[refusal]
}

// SendHeader adds the rates to the header.
func (s *stream) SendHeader(md metadata.MD) error {
	s.addRates()
	return s.ServerStream.SendHeader(md)
}

// SendMsg adds the rates to the header that the first message sends.
func (s *stream) SendMsg(m any) error {
	s.addRates()
	return s.ServerStream.SendMsg(m)
}

func (s *stream) addRates() {
	s.report.Do(func() {
		if s.SetHeader(s.rates) != nil { // the handler has sent the header by grpc.SendHeader
			s.SetTrailer(s.rates)
		}
	})
}

// RecvMsg charges each message after the first, if Options.PerMessage is set.
func (s *stream) RecvMsg(m any) error {
	if refused := s.refused.Load(); refused != nil {
		return refused.err
	}
	if err := s.ServerStream.RecvMsg(m); err != nil || !s.l.options.PerMessage {
		return err
	}
	if !s.began {
		s.began = true
		return nil
	}
	d, letGo, refused := s.l.admit(s.Context(), s.method)
	letGo()
	if refused != nil {
		s.refused.Store(refused)
		return refused.err
	}
	s.l.settle(s.Context(), s.method, d, nil) // the stream is in flight, not its messages
	return nil
}
