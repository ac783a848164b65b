package leased_test

import (
	"context"
	"testing"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/local/leased"
	"github.com/weir-go/weir/throttler/driver"
)

func open(t testing.TB, wrapped driver.Backend, o *leased.Options) *leased.Backend {
	t.Helper()
	b, err := leased.New(wrapped, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error("Close:", err)
		}
	})
	return b
}

func TestBackend(t *testing.T) {
	const reason = "answers from leases report the units that others may hold as used"
	backendtest.RunExcept(t, func(t *testing.T) driver.Backend { return open(t, memorybackend.NewDefault(), nil) }, map[string]string{
		"concurrency/64 goroutines share a quota of 200, fixed-window":         reason,
		"concurrency/64 goroutines share a quota of 200, aligned fixed-window": reason,
		"pauses/a pause, fixed-window":                                         "processes spend what they hold",
		"pauses/a pause, aligned fixed-window":                                 "processes spend what they hold",
	})
}
