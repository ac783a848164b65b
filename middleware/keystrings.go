package middleware

import (
	"encoding/binary"
	"net/netip"
)

// The keys under which requests are charged, for programs that ask about them without a
// request: an admin's page, or a login that resets its failures.

// SubjectKey returns the key of [Subject], [BearerToken] and [APIKey]: "subject:alice".
func SubjectKey(subject string) string { return "subject:" + subject }

// AddressKey returns the key of [ClientIP] with these options, nil for the defaults:
// "ip:192.0.2.7", "ip:2001:db8::/64". Of options it uses IPv6Prefix. An address that is not
// valid has none: "".
func AddressKey(addr netip.Addr, options *IPOptions) string {
	from, _ := addressFrom(options)
	return from.key(addr.Unmap().WithZone(""))
}

// JoinedKey returns the key of [Join] for requests that have these keys, in their order; ""
// for a [RoutePattern] that a request lacks.
func JoinedKey(keys ...string) string {
	joined := []byte("join:")
	for _, key := range keys {
		joined = binary.AppendUvarint(joined, uint64(len(key)))
		joined = append(joined, key...)
	}
	return string(joined)
}
