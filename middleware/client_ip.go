package middleware

import (
	"net/http"
	"net/netip"

	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/throttler"
)

// IPOptions say how wide a net one client address stands for.
type IPOptions struct {
	// IPv6Prefix is the length of the prefix that one IPv6 client has, 1 to
	// 128. A provider hands out at least a /64 to each customer, who can send
	// from all of its addresses. If zero, 64.
	IPv6Prefix int
}

// ClientIP keys by the client's address as one of chi's ClientIPFrom…
// middlewares has found it, which must run before: ClientIPFromRemoteAddr where
// clients connect directly, ClientIPFromXFF with the prefixes of trusted
// proxies where they do not. Without one, or where it found no address that
// can be trusted, it knows nothing of the request; no header is read here.
// IPv4 addresses count each by itself, also in IPv6 form. It panics if
// options are out of range.
func ClientIP(options *IPOptions) KeyFunc {
	prefix := 64
	if options != nil && options.IPv6Prefix != 0 {
		prefix = options.IPv6Prefix
	}
	if prefix < 1 || prefix > 128 {
		panic("middleware: ClientIP: IPv6Prefix must be from 1 to 128")
	}
	return func(r *http.Request) (string, bool) {
		addr, ok := clientAddr(r)
		if !ok {
			return "", false
		}
		return ipKey(addr, prefix), true
	}
}

// IPv6Chain charges an IPv6 client at its /48, its /56 and its /64 at once,
// each under a policy of its own, all or nothing: whoever commands a whole /48
// is stopped there, and one customer of a provider is not stopped by another's
// traffic. Quotas should rise from p64 to p48. An IPv4 client is charged under
// p64 alone. The address comes from where [ClientIP] has it; requests without
// one share a count under p64.
func IPv6Chain(p48, p56, p64 *throttler.Policy) Classifier {
	return func(r *http.Request) []throttler.Charge {
		addr, ok := clientAddr(r)
		switch {
		case !ok:
			return []throttler.Charge{p64.Charge(unknown)}
		case addr.Is4():
			return []throttler.Charge{p64.Charge(ipKey(addr, 64))}
		}
		return []throttler.Charge{p48.Charge(ipKey(addr, 48)), p56.Charge(ipKey(addr, 56)), p64.Charge(ipKey(addr, 64))}
	}
}

func clientAddr(r *http.Request) (netip.Addr, bool) {
	addr := chimiddleware.GetClientIPAddr(r.Context()).Unmap().WithZone("")
	return addr, addr.IsValid()
}

func ipKey(addr netip.Addr, ipv6Prefix int) string {
	if addr.Is4() {
		return "ip:" + addr.String()
	}
	return "ip:" + netip.PrefixFrom(addr, ipv6Prefix).Masked().String()
}
