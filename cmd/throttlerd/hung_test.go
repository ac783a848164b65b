package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/throttler/policies"
)

// While Redis hangs, a call is answered before its deadline, by WEIR_ON_FAILURE.
func TestRedisHangs(t *testing.T) {
	for failure, want := range map[string]string{"error": "Unavailable", "open": "OK", "closed": "OVER", "local": "OK"} {
		t.Run(failure, func(t *testing.T) {
			t.Parallel()
			redis := testserver.Redis(t)
			d := started(t, perYear, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr, "WEIR_DEADLINE=50ms", "WEIR_ON_FAILURE="+failure)
			d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
			users := 0
			eventually(t, func() error { // a new user each time: on a busy machine, a call that failed may have charged
				users++
				remain, err := d.ask(fmt.Sprint("first ", users))
				if err == nil && remain != 2 {
					err = fmt.Errorf("%d remain, want 2", remain)
				}
				return err
			})
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

// While Redis hangs, calls with little time are decided without the override of their key, by
// WEIR_ON_FAILURE.
func TestRedisOfOverridesHangs(t *testing.T) {
	redis := testserver.Redis(t)
	o := newOverrider(t, redis.Addr)
	o.override(policies.Override{Policy: "d.user", Key: "d?user=vip", Limits: limits(t, "9 per 8760h aligned")}) // before the first request
	d := started(t, perYear, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+redis.Addr, "WEIR_DEADLINE=50ms", "WEIR_ON_FAILURE=local")
	eventually(t, func() error { // without a charge: a late answer would leave one
		n, err := d.left("vip")
		if err == nil && n != 9 {
			err = fmt.Errorf("%d remain, want 9", n)
		}
		return err
	})
	redis.Pause()
	defer redis.Resume()
	for i := range 5 { // each a key whose override is not known
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		remain, err := d.askIn(ctx, fmt.Sprint("user ", i))
		cancel()
		if err != nil || remain != 2 {
			t.Errorf("%d remain, %v; want 2, by this process's share", remain, err)
		}
	}
}

// Flags that move clients from memory to a Redis that hangs leave calls their deadline: without
// it, this call would wait for the 30 s that the file sets.
func TestRedisOfFlagsHangs(t *testing.T) {
	redis := testserver.Redis(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"flags.yaml": "redis: 100\n",
		"weir.yaml":  "backend: memory\nflags: flags.yaml\ndeadline: 30s\nredis: {shards: [{name: a, primary: '" + redis.Addr + "'}]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := started(t, perYear, "BACKEND_TYPE=", "WEIR_DEADLINE=50ms", "WEIR_CONFIG="+filepath.Join(dir, "weir.yaml"))
	d.serves(grpc_health_v1.HealthCheckResponse_SERVING)
	d.remains("a", 2)
	redis.Pause()
	defer redis.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer time.AfterFunc(20*time.Second, cancel).Stop() // a deadline would be sent with the call
	if _, err := d.askIn(ctx, "b"); status.Code(err) == codes.Canceled {
		t.Errorf("a call without a deadline has no answer after 20 s")
	}
}
