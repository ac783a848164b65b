package redisbackend_test

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/testkit/testserver"
)

// The first decision, and each one while the breaker is open, says why a server doesn't serve.
func TestErrorsSayWhatIsWrong(t *testing.T) {
	plain, withTLS := testserver.Redis(t), testserver.RedisTLS(t)
	replica := testserver.RedisReplica(t, plain)
	secret := protected(t)
	admin := redis.NewClient(&redis.Options{Addr: secret.Addr, Password: "secret"})
	defer admin.Close()
	if err := admin.Do(t.Context(), "acl", "setuser", "few", "on", ">pw", "~weir:*", "+get").Err(); err != nil {
		t.Fatal(err)
	}
	anyServer := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // of a test
	for name, test := range map[string]struct {
		options redis.UniversalOptions
		want    string
	}{
		"TLS to a server without":    {redis.UniversalOptions{Addrs: []string{plain.Addr}, TLSConfig: anyServer}, "the server at " + plain.Addr + " does not speak TLS; use redis:// in place of rediss://, tls: false, or no TLSConfig: "},
		"a cluster's without":        {redis.UniversalOptions{Addrs: []string{plain.Addr}, IsClusterMode: true, TLSConfig: anyServer}, "the server at " + plain.Addr + " does not speak TLS; "},
		"no TLS to a server with it": {redis.UniversalOptions{Addrs: []string{withTLS.Addr}}, "the server at " + withTLS.Addr + " speaks TLS; use rediss:// in place of redis://, tls: true, or TLSConfig: "},
		"no client's certificate":    {redis.UniversalOptions{Addrs: []string{withTLS.Addr}, TLSConfig: anyServer}, "certificate required"},
		"an unknown authority":       {redis.UniversalOptions{Addrs: []string{withTLS.Addr}, TLSConfig: &tls.Config{}}, "certificate signed by unknown authority"}, //nolint:gosec // the default
		"no password":                {redis.UniversalOptions{Addrs: []string{secret.Addr}}, "NOAUTH "},
		"a wrong password":           {redis.UniversalOptions{Addrs: []string{secret.Addr}, Password: "x"}, "WRONGPASS "},
		"no such user":               {redis.UniversalOptions{Addrs: []string{secret.Addr}, Username: "x", Password: "x"}, "WRONGPASS "},
		"no permission":              {redis.UniversalOptions{Addrs: []string{secret.Addr}, Username: "few", Password: "pw"}, "NOPERM "},
		"a replica as the primary":   {redis.UniversalOptions{Addrs: []string{replica.Addr}}, "READONLY "},
	} {
		t.Run(name, func(t *testing.T) {
			b, e := newObserved(t, connect(t, &test.options), redisbackend.Options{})
			b.backend.WithoutChecks()
			for range 4 {
				if _, err := b.Take(t.Context(), loginPolicies[0].Charge("alice")); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, c := range e.checked {
				if c.Open && !strings.Contains(c.Err.Error(), test.want) {
					t.Errorf("the log has %v, want %q", c.Err, test.want)
				}
			}
		})
	}
}
