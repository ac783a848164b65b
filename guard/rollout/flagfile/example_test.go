package flagfile_test

import (
	"context"
	"fmt"
	stdlog "log"
	"os"
	"path/filepath"

	"github.com/open-feature/go-sdk/openfeature"

	"github.com/weir-go/weir/guard/rollout"
	"github.com/weir-go/weir/guard/rollout/flagfile"
)

// A file says which backend serves each client: here 30 percent are on Redis, and
// carol always is.
func Example() {
	dir, err := os.MkdirTemp("", "flags")
	if err != nil {
		stdlog.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "flags.json")
	carol := rollout.TargetingKey("carol")
	flags := `{"flags": {"throttler-backend": {
		"state": "ENABLED",
		"variants": {"redis": "redis", "memcached": "memcached"},
		"defaultVariant": "memcached",
		"targeting": {"if": [
			{"in": [{"var": "targetingKey"}, ["` + carol + `"]]}, "redis",
			{"fractional": [["redis", 30], ["memcached", 70]]}
		]}
	}}}`
	if err := os.WriteFile(name, []byte(flags), 0o600); err != nil {
		stdlog.Fatal(err)
	}

	provider, err := flagfile.New(name, nil)
	if err != nil {
		stdlog.Fatal(err)
	}
	if err := openfeature.SetNamedProviderAndWait("throttler", provider); err != nil {
		stdlog.Fatal(err)
	}
	defer openfeature.Shutdown()
	client := openfeature.NewClient("throttler")
	for _, user := range []string{"alice", "bob", "carol"} {
		key := openfeature.NewEvaluationContext(rollout.TargetingKey(user), nil)
		fmt.Println(user, client.String(context.Background(), rollout.DefaultFlag, "", key))
	}
	// Output:
	// alice memcached
	// bob redis
	// carol redis
}
