package weirgrpc

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/decision"
)

// A refusal is the answer to a call that is not served. Its metadata is a trailer, because
// gRPC does not retry a call after a header.
type refusal struct {
	err     error
	trailer metadata.MD // may be nil
}

// pushback is the only metadata that gRPC's own retries read: the milliseconds to wait, or a
// negative number to stop retrying.
const pushback = "grpc-retry-pushback-ms"

// refuse returns the refusal of a decision that is not allowed.
func refuse(d *throttler.Decision) *refusal {
	s, shown := d.Reported()
	text := ""
	switch {
	case !shown || !s.Refused:
		text = "This call is refused."
	case d.Blocked:
		text = s.Policy.Name + " is blocked for this client."
	case s.RetryAt.Equal(decision.Never) && s.Cost > s.Limit.Capacity():
		text = fmt.Sprintf("This call costs %d, and %s allows no more than %d at once.", s.Cost, s.Policy.Name, s.Limit.Capacity())
	case s.Limit.Algorithm.Holds():
		text = fmt.Sprintf("%s allows %d at once.", s.Policy.Name, s.Limit.Quota)
	default:
		burst := ""
		if capacity := s.Limit.Capacity(); capacity != s.Limit.Quota {
			burst = fmt.Sprintf(", and %d at once", capacity)
		}
		text = fmt.Sprintf("%s allows %d per %s%s.", s.Policy.Name, s.Limit.Quota, s.Limit.Per(), burst)
	}
	var r *refusal
	if retryAt := d.RetryAt(); retryAt.Equal(decision.Never) {
		r = &refusal{err: status.Error(codes.ResourceExhausted, text), trailer: metadata.Pairs(pushback, "-1")}
	} else {
		r = later(codes.ResourceExhausted, text, retryAt.Sub(d.At()))
	}
	r.trailer = metadata.Join(r.trailer, rates(*d))
	return r
}

// maxDelay is the longest delay in a refusal: 100 years, as for HTTP. A difference of
// instants ends at the longest time.Duration, which can't be rounded up.
const maxDelay = 36525 * 24 * time.Hour

// later returns the refusal of a call that may be sent again after delay, or maxDelay if it is
// longer, rounded up to milliseconds and, for retry-after, to seconds.
func later(code codes.Code, text string, delay time.Duration) *refusal {
	ms := max((min(delay, maxDelay)-1).Milliseconds()+1, 1)
	s := (ms-1)/1000 + 1
	with, err := status.New(code, fmt.Sprintf("%s Try again in %d s.", text, s)).
		WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Duration(ms) * time.Millisecond)})
	if err != nil {
		panic("weirgrpc: " + err.Error()) // only for codes.OK
	}
	return &refusal{
		err:     with.Err(),
		trailer: metadata.Pairs(pushback, strconv.FormatInt(ms, 10), "retry-after", strconv.FormatInt(s, 10)),
	}
}

// canceled returns the refusal of a call whose context is over.
func canceled(ctx context.Context) *refusal {
	return &refusal{err: status.FromContextError(ctx.Err()).Err()}
}

// rates returns the metadata about the limit of d that binds. It is empty if the shared counts
// are unknown.
func rates(d throttler.Decision) metadata.MD {
	h, md := make(http.Header), make(metadata.MD)
	middleware.WriteHeaders(h, nil, d)
	h.Del("Retry-After") // the function later sets it
	for name, values := range h {
		md.Set(name, values...)
	}
	return md
}
