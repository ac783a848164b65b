// Package weir is the short way in: constructors with good defaults for the packages throttler
// and middleware, whose types and methods they return.
//
//	t := weir.New() // or weir.Open("redis://127.0.0.1:6379", nil)
//	core := weir.MustPolicy("core: 60 per hour")
//	http.Handle("GET /hello", weir.Limit(t, core, weir.ClientIP())(hello))
//
// [Limit] returns middleware for net/http and chi. For Gin, Echo and Fiber, wrap it by
// contrib/gin, contrib/echo, contrib/echo5 or contrib/fiber, which end the framework's chain when
// a request is refused. For programs without HTTP, t has the verbs: Take, Peek, Refund, Reset.
//
// Each function is short for others, which take options and return errors:
//
//	New, Open    throttler.New, with a backend of backend/memory, backend/redis or backend/memcached
//	MustPolicy   quota.ParsePolicy, or a throttler.Policy
//	Limit        middleware.New and middleware.Limit; for logins, middleware/login
//	ClientIP     middleware.ClientIP; for users, middleware.Subject
package weir

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync/atomic"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// New returns a Throttler that counts in this process, for programs of one process and for tests.
// A program calls it once: each Throttler has counts of its own.
func New() *throttler.Throttler {
	if made.Add(1) == manyMade {
		weirlog.Default().Warned(observe.Warned{
			Text: fmt.Sprintf("weir.New was called %d times, and each Throttler has counts of its own, so that a request with a new one is not limited", manyMade),
			Hint: "call it once, when the program starts, and not for each request",
		})
	}
	return throttler.New(memorybackend.NewDefault(), nil)
}

// made counts the calls of New.
var made atomic.Int64

// manyMade is how many calls of New are warned of.
const manyMade = 1000

// MustPolicy returns the policy that text describes, such as "core: 60 per hour" or
// "core: 20 per minute, 500 per day". It panics if [quota.ParsePolicy] returns an error.
func MustPolicy(text string) *throttler.Policy { return Must(quota.ParsePolicy(text)) }

// Limit returns middleware that charges each request one unit of p for key. It panics if
// middleware.New returns an error: p or key is not valid, or t knows p's name with other limits.
func Limit(t *throttler.Throttler, p *throttler.Policy, key middleware.Key) func(http.Handler) http.Handler {
	return Must(middleware.New(t, middleware.Limit(p, key), nil))
}

// ClientIP keys by the client's address, as middleware.ClientIP does. Behind proxies, name
// their addresses or prefixes, such as "10.0.0.0/8": otherwise all clients share one count.
// ClientIP panics if one is not valid.
func ClientIP(trustedProxies ...string) middleware.Key {
	var o middleware.IPOptions
	for _, text := range trustedProxies {
		prefix, err := netip.ParsePrefix(text)
		if addr, isAddr := netip.ParseAddr(text); isAddr == nil {
			prefix, err = addr.Prefix(addr.BitLen())
		}
		if err != nil {
			panic(fmt.Sprintf("weir: ClientIP: trusted proxy is %q; it must be an address or a prefix, such as 10.0.0.0/8", text))
		}
		o.TrustedProxies = append(o.TrustedProxies, prefix)
	}
	return middleware.ClientIP(&o)
}

// Must returns v. It panics if err is not nil: for values that are written in the program.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
