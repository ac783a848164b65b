package middleware

import (
	"encoding/binary"
	"net/netip"
)

// The keys that requests are charged to, for programs that use them without a request, such as
// an admin page, or a login that resets its failures.

// SubjectKey returns the key of [Subject], [BearerToken] and [APIKey]: "subject:alice".
func SubjectKey(subject string) string { return "subject:" + subject }

// AddressKey returns the key of [ClientIP] with options, or the defaults if nil:
// "ip:192.0.2.7", "ip:2001:db8::/64". It uses only the IPv6Prefix of options. It returns "" if
// addr is invalid.
func AddressKey(addr netip.Addr, options *IPOptions) string {
	from, _ := addressFrom(options)
	return from.key(addr.Unmap().WithZone(""))
}

// JoinedKey returns the key of [Join] for requests that have these keys, in order. The key of
// a [RoutePattern] that a request lacks is "".
func JoinedKey(keys ...string) string {
	joined := []byte("join:")
	for _, key := range keys {
		joined = binary.AppendUvarint(joined, uint64(len(key)))
		joined = append(joined, key...)
	}
	return string(joined)
}
