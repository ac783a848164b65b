package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// While Redis hangs, a call is answered before its deadline, by WEIR_ON_FAILURE.
func TestRedisHangs(t *testing.T) {
	for failure, want := range map[string]string{"error": "Unavailable", "open": "OK", "closed": "OVER", "local": "OK"} {
		t.Run(failure, func(t *testing.T) {
			t.Parallel()
			redis := testserver.Redis(t)
			d := started(t, perYear, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr, "WEIR_ON_FAILURE="+failure)
			d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
			d.remains("a", 2)
			counted := "ratelimit_service_without_store"
			if failure == "error" {
				counted = `ratelimit_service_should_rate_limit_error{err_type="redis_error"}`
			}
			before := d.counter(counted) // counts the first calls, on a busy machine
			redis.Pause()
			defer redis.Resume()
			for _, deadline := range []time.Duration{time.Second, 0} {
				ctx, cancel := context.WithCancel(t.Context())
				if deadline > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), deadline)
				}
				remain, err := d.askIn(ctx, "b")
				for status.Code(err) == codes.ResourceExhausted { // the process has too little CPU to notice the hung server
					remain, err = d.askIn(ctx, "b")
				}
				got := ""
				switch {
				case status.Code(err) == codes.Unavailable:
					got = "Unavailable"
				case err != nil:
					got = err.Error()
				case remain < 0:
					got = "OVER"
				default:
					got = "OK"
				}
				cancel()
				if !strings.HasPrefix(got, want) {
					t.Errorf("with the deadline %v: %s, want %s", deadline, got, want)
				}
			}
			if got := d.counter(counted) - before; got < 2 {
				t.Errorf("%s counts %d calls, want 2 at least", counted, got)
			}
		})
	}
}
