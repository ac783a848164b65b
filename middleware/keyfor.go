package middleware

import (
	"encoding/binary"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler/policies"
)

// For returns the key that requests of a client have, without a request: for the Reset and Peek of
// an operator, and for overrides and plans.
//
//	user.For("alice")                        // Subject, BearerToken and APIKey: subject:alice
//	middleware.ClientIP(nil).For("2001:db8::1") // ip:2001:db8::/64
//	middleware.Join(user, middleware.Method()).For("alice", "GET")
//
// [Join] takes a text for each of its keys, and "" for a [RoutePattern] that requests lack.
// [Everyone] takes none. For a [KeyFunc], the text is the key itself. [FirstOf] is an error: call
// For of the one of its keys that the client has. So is a range of addresses, which have a count
// each. Errors wrap throttler.ErrInvalid.
func (k Key) For(texts ...string) (string, error) {
	if err := k.validate(); err != nil {
		return "", err
	}
	if k.joins != nil {
		return k.joinFor(texts)
	}
	switch {
	case k.make == nil && strings.Join(texts, "") == "": // of Everyone
		return everyone, nil
	case k.make == nil:
		return "", invalid.Errorf("middleware: Key.For has a text; Everyone takes none")
	case len(texts) != 1:
		return "", invalid.Errorf("middleware: Key.For has %d texts; this key takes 1", len(texts))
	}
	key, problem := k.make(texts[0])
	if problem != "" {
		return "", invalid.Errorf("middleware: Key.For: %s", problem)
	}
	return key, nil
}

func (k Key) joinFor(texts []string) (string, error) {
	if len(texts) != len(k.joins) {
		return "", invalid.Errorf("middleware: Key.For has %d texts; Join of %d keys takes one for each", len(texts), len(k.joins))
	}
	parts := make([]string, len(texts))
	for i, part := range k.joins {
		if part.optional && texts[i] == "" {
			continue
		}
		key, err := part.For(texts[i])
		if err != nil {
			return "", err
		}
		parts[i] = key
	}
	return joinedKey(parts...), nil
}

// joinedKey returns the key of [Join] for requests that have these keys, in order. The key of a
// [RoutePattern] that a request lacks is "".
func joinedKey(keys ...string) string {
	joined := []byte("join:")
	for _, key := range keys {
		joined = binary.AppendUvarint(joined, uint64(len(key)))
		joined = append(joined, key...)
	}
	return string(joined)
}

const everyone = "everyone:"

// prefixed returns a Key's make and form for keys that are a kind and a text. noun names the text
// in errors.
func prefixed(kind, noun string) (func(string) (string, string), []policies.KeyForm) {
	return func(text string) (string, string) {
		switch {
		case text == "":
			return "", "the " + noun + " is empty"
		case strings.HasPrefix(text, kind):
			return "", "the " + noun + " begins with " + kind + "; it must be without, for For adds it"
		}
		return kind + text, ""
	}, []policies.KeyForm{{Kind: kind, Has: func(key string) bool { return strings.HasPrefix(key, kind) }}}
}

// keyFor returns the key of an address in text, or what is wrong with it.
func (s addressSource) keyFor(text string) (key, problem string) {
	if addr, ok := parseAddr(text); ok {
		return s.key(addr), ""
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err == nil && p == p.Masked() && s.key(p.Addr().Unmap()) == "ip:"+text, err == nil && p.IsSingleIP():
		return s.key(p.Addr().Unmap()), ""
	case err == nil && p.Addr().Unmap().Is4():
		return "", "the address is " + text + ", a range; each address of IPv4 has a count, so name one, such as " + p.Addr().String()
	case err == nil:
		return "", "the address is " + text + ", a range; each " + netip.PrefixFrom(netip.IPv6Unspecified(), s.ipv6Prefix).String()[2:] + " of IPv6 has a count, so name an address, such as " + p.Addr().String()
	case strings.HasPrefix(text, "ip:"):
		return "", "the address begins with ip:; it must be without, for For adds it"
	}
	return "", "the address is " + text + "; it must be one of IPv4 or IPv6, such as 203.0.113.7"
}

// hasKey reports whether key is one of an address.
func (s addressSource) hasKey(key string) bool {
	text, ok := strings.CutPrefix(key, "ip:")
	right, problem := s.keyFor(text)
	return ok && problem == "" && right == key
}

// methodFor returns the key of a method, or what is wrong with it.
func methodFor(method string) (key, problem string) {
	if slices.Contains(methods, method) {
		return "method:" + method, ""
	}
	if upper := strings.ToUpper(method); slices.Contains(methods, upper) {
		return "", "the method is " + method + "; it must be " + upper
	}
	return "", "the method is " + method + "; it must be one of net/http's, such as GET: others share a count"
}

var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// declareKeys tells names the forms of the keys of c's charges.
func (c Classifier) declareKeys(names *policies.Names) {
	for _, r := range c.rules {
		for _, p := range r.policies {
			names.DeclareKeys(p.Name, r.partition != nil, r.forms...)
		}
	}
}
