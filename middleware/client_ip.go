package middleware

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// IPOptions configures [ClientIP] and [IPv6Chain]. Nil and the zero value select
// the defaults.
type IPOptions struct {
	// TrustedProxies are the addresses of the proxies that are trusted to set X-Forwarded-For.
	// If empty, the header is ignored. A prefix that covers much of the internet is an error,
	// because it lets clients choose their address: IPv4 prefixes must have at least 8 bits,
	// IPv6 prefixes at least 7, the length of fc00::/7.
	TrustedProxies []netip.Prefix

	// IPv6Prefix is the length of the prefix that counts as one IPv6 client, 1
	// to 128. If zero, 64: a provider assigns at least a /64 to each customer,
	// and the customer can send from all of its addresses. IPv6Chain does not use it.
	IPv6Prefix int
}

// Bounds of X-Forwarded-For: the number of entries that are read, and the bytes of each with
// its spaces and comma. The header is read before any limit.
const (
	maxForwarded      = 32
	maxForwardedEntry = 256
)

// Prefixes of trusted proxies have at least these lengths.
const (
	minIPv4Bits = 8
	minIPv6Bits = 7
)

// ClientIP keys by the client's address, IPv6 addresses by their prefix. An IPv6 address that
// embeds an IPv4 address counts as the IPv4 address: an IPv4-mapped address, or one of NAT64
// (64:ff9b::/96), 6to4 (2002::/16) or Teredo (2001::/32). Addresses of NAT64's local prefix,
// 64:ff9b:1::/48, count one by one, because each network chooses where they contain the IPv4
// address.
//
// If a ClientIPFrom… middleware of chi ran in front, and found an address, that is used.
// Otherwise the address is the connection's or, if that belongs to a trusted proxy, the
// rightmost address of X-Forwarded-For that does not. If the header has no such address, or an
// invalid entry to its right, the last trusted proxy counts as the client: entries further left
// may be forged. At most 32 entries are read. Entries may have a port.
//
// A loopback or private address that sends X-Forwarded-For or Forwarded, and is not among
// TrustedProxies, is likely a proxy, and all of its clients share one count. The middleware
// warns about that once.
//
// A request without an address, as through a Unix socket, has no key: there, put chi's
// ClientIPFromHeader or ClientIPFromXFFTrustedProxies in front. Invalid options are an
// error in [New], which wraps throttler.ErrInvalid.
func ClientIP(options *IPOptions) Key {
	from, err := addressFrom(options)
	if err != nil {
		return Key{err: err}
	}
	return Key{
		addresses: []addressSource{from},
		make:      from.keyFor,
		forms:     []policies.KeyForm{{Kind: "ip:", Has: from.hasKey}},
		read: func(r *http.Request) (string, bool) {
			key := from.key(from.find(r))
			return key, key != ""
		},
	}
}

// IPv6Chain charges an IPv6 client at its /48, its /56 and its /64 at once, each under a
// separate policy, all or nothing: a client with a whole /48 is stopped there, and one
// customer of a provider is not stopped by another's traffic. Quotas should rise from p64 to
// p48. An IPv4 client, and an address that [ClientIP] counts by itself, is charged under p64
// alone. IPv6Chain finds addresses as [ClientIP] does; requests without an address share a
// count under p64.
func IPv6Chain(p48, p56, p64 *throttler.Policy, options *IPOptions) Classifier {
	from, err := addressFrom(options)
	err = cmp.Or(err, risingQuotas(p48, p56), risingQuotas(p56, p64))
	return Classifier{err: err, rules: []rule{{addresses: []addressSource{from}, policies: []*throttler.Policy{p48, p56, p64}, append: func(charges []throttler.Charge, r *http.Request) []throttler.Charge {
		addr := embedded(from.find(r))
		switch {
		case !addr.IsValid():
			return append(charges, p64.Charge(unknown))
		case isOneClient(addr):
			return append(charges, p64.Charge(ipKey(addr, 64)))
		}
		network := ipKey(addr, 48)
		return append(charges, p48.Charge(network), p56.Charge(ipKey(addr, 56)).Within(network), p64.Charge(ipKey(addr, 64)).Within(network))
	}}}}
}

// risingQuotas returns an error if limits of inner can never refuse, because outer's are lower.
func risingQuotas(outer, inner *throttler.Policy) error {
	if outer == nil || inner == nil {
		return nil // a nil policy is another error
	}
	for _, a := range outer.Limits {
		for _, b := range inner.Limits {
			if a.Algorithm == b.Algorithm && a.Window == b.Window && a.Calendar == b.Calendar && a.Quota < b.Quota {
				return invalid.Errorf("middleware: IPv6Chain: policy %q allows %v, and %q, of a part of its addresses, %v, which none can reach; quotas must rise from p64 to p48", outer.Name, a, inner.Name, b)
			}
		}
	}
	return nil
}

func ipKey(addr netip.Addr, ipv6Prefix int) string {
	var room [len("ip:") + len("xxxx:xxxx:xxxx:xxxx:xxxx:xxxx:xxxx:xxxx/128")]byte
	key := append(room[:0], "ip:"...)
	if isOneClient(addr) {
		return string(addr.AppendTo(key))
	}
	return string(netip.PrefixFrom(addr, ipv6Prefix).Masked().AppendTo(key))
}

// Prefixes of addresses that embed IPv4 addresses.
var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")   // RFC 6052
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48") // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")      // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")      // RFC 4380
)

// embedded returns the client's IPv4 address that addr embeds, or addr. A /64 would be the
// wrong unit: one contains all of IPv4 in NAT64 and all clients of a server in Teredo, and in
// 6to4 an IPv4 address has 65,536 of them. A client can't choose the embedded address, because
// answers go there. embedded is for keys alone: proxies are trusted by the address itself.
func embedded(addr netip.Addr) netip.Addr {
	if addr.Is4() || !addr.IsValid() {
		return addr
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:]))
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:]))
	case teredo.Contains(addr):
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	}
	return addr
}

// isOneClient reports whether addr counts by itself and not by a prefix.
func isOneClient(addr netip.Addr) bool { return addr.Is4() || nat64Local.Contains(addr) }

// addressSource finds clients' addresses.
type addressSource struct {
	trusted    []netip.Prefix
	ipv6Prefix int
}

func addressFrom(options *IPOptions) (addressSource, error) {
	var o IPOptions
	if options != nil {
		o = *options
	}
	s := addressSource{ipv6Prefix: cmp.Or(o.IPv6Prefix, 64)}
	if s.ipv6Prefix < 1 || s.ipv6Prefix > 128 {
		return s, invalid.Errorf("middleware: IPOptions.IPv6Prefix is %d; it must be from 1 to 128, or 0 for 64", o.IPv6Prefix)
	}
	for i, p := range o.TrustedProxies {
		if !p.IsValid() {
			return s, invalid.Errorf("middleware: IPOptions.TrustedProxies[%d] is not a valid prefix; it must be like 10.0.0.0/8 or 2001:db8::1/128", i)
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 { // addresses are compared unmapped
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if least := minBits(p); p.Bits() < least {
			return s, invalid.Errorf("middleware: IPOptions.TrustedProxies[%d] is %v, which trusts so much of the internet that clients could choose their address by a header; a prefix must have at least %d bits", i, p, least)
		}
		s.trusted = append(s.trusted, p)
	}
	return s, nil
}

func minBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return minIPv4Bits
	}
	return minIPv6Bits
}

// key returns the key of addr, or "" if addr is invalid.
func (s addressSource) key(addr netip.Addr) string {
	if addr = embedded(addr); addr.IsValid() {
		return ipKey(addr, s.ipv6Prefix)
	}
	return ""
}

// find returns the client's address, or the zero Addr.
func (s addressSource) find(r *http.Request) netip.Addr {
	if addr := chimiddleware.GetClientIPAddr(r.Context()); addr.IsValid() {
		return addr.Unmap().WithZone("")
	}
	addr, ok := parseAddr(r.RemoteAddr)
	if !ok || !s.trusts(addr) {
		return addr
	}
	entries := 0
	for _, line := range slices.Backward(r.Header["X-Forwarded-For"]) { // several lines are one list
		for next := true; next; {
			if entries++; entries > maxForwarded {
				return addr
			}
			entry := line[max(len(line)-maxForwardedEntry, 0):]
			comma := strings.LastIndexByte(entry, ',')
			if next = comma >= 0; next {
				line, entry = line[:len(line)-len(entry)+comma], entry[comma+1:]
			} else if len(entry) < len(line) {
				return addr // longer than an address
			}
			// An empty entry ends the walk too: a proxy may have appended it for a
			// client that it does not know.
			next, ok := parseAddr(strings.Trim(entry, " \t"))
			if !ok {
				return addr
			}
			if addr = next; !s.trusts(addr) {
				return addr
			}
		}
	}
	return addr
}

// missesForwarded reports whether r comes from a trusted proxy that tells the client's address in
// another header than X-Forwarded-For. A proxy's own checks have neither.
func (s *addressSource) missesForwarded(r *http.Request) bool {
	if len(s.trusted) == 0 || len(r.Header["X-Forwarded-For"]) > 0 || chimiddleware.GetClientIPAddr(r.Context()).IsValid() {
		return false
	}
	if len(r.Header["X-Real-Ip"]) == 0 && len(r.Header["Forwarded"]) == 0 {
		return false
	}
	addr, ok := parseAddr(r.RemoteAddr)
	return ok && s.trusts(addr)
}

// missesProxy reports whether r seems to come from a proxy that is not declared. A client can
// forge the header, but not a private address of ours.
func (s *addressSource) missesProxy(r *http.Request) bool {
	if len(r.Header["X-Forwarded-For"]) == 0 && len(r.Header["Forwarded"]) == 0 || chimiddleware.GetClientIPAddr(r.Context()).IsValid() {
		return false
	}
	addr, ok := parseAddr(r.RemoteAddr)
	return ok && (addr.IsLoopback() || addr.IsPrivate()) && !s.trusts(addr)
}

// hasAddress reports whether the connection of r has an address: one of a Unix socket has none.
func hasAddress(r *http.Request) bool {
	_, ok := parseAddr(r.RemoteAddr)
	return ok
}

func (s addressSource) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(s.trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// parseAddr reads an address with or without a port: "ip", "ip:port", "[ip]" or
// "[ip]:port". The zone of an IPv6 address is dropped.
func parseAddr(text string) (netip.Addr, bool) {
	if strings.HasSuffix(text, "]") {
		text += ":0"
	}
	withPort, err := netip.ParseAddrPort(text)
	addr := withPort.Addr()
	if err != nil {
		addr, err = netip.ParseAddr(text)
	}
	return addr.Unmap().WithZone(""), err == nil
}
