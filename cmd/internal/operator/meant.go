package operator

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/middleware"
)

// Suggestion is a key that may have been meant by another.
type Suggestion struct {
	Right  string // "" if there is none
	Reason string
	Sure   bool // no key of package middleware has the other form
}

// MeantBy returns the key that a program charges when an operator writes key, if that is another.
func MeantBy(key string) Suggestion {
	address, prefixed := strings.CutPrefix(key, "ip:")
	if p, err := netip.ParsePrefix(address); err == nil {
		switch right := "ip:" + p.Masked().String(); {
		case p.Addr().Unmap().Is4() && p.Bits() == p.Addr().BitLen():
			return Suggestion{middleware.AddressKey(p.Addr(), nil), "an address of IPv4 has no length", true}
		case p.Addr().Unmap().Is4():
			return Suggestion{"", "each address of IPv4 is charged alone, and no range is", true}
		case right != key:
			return Suggestion{right, "clients of IPv6 are charged for the beginning of their address", true}
		case p.Bits() != 64:
			return Suggestion{middleware.AddressKey(p.Addr(), nil), "clients of IPv6 are charged for a /64 unless the program's IPv6Prefix is another", false}
		}
		return Suggestion{}
	}
	addr, err := netip.ParseAddr(strings.Trim(address, "[]"))
	if err != nil {
		var port netip.AddrPort
		port, err = netip.ParseAddrPort(address)
		addr = port.Addr()
	}
	if err == nil {
		if right := middleware.AddressKey(addr, nil); right != key {
			return Suggestion{right, "middleware.ClientIP and forward auth charge addresses in that form", true}
		}
		return Suggestion{}
	}
	if prefixed || strings.ContainsAny(key, ":?") {
		return Suggestion{}
	}
	return Suggestion{middleware.SubjectKey(key), "callers that are authenticated are charged in that form", false}
}

// UnlessMeant returns an error if nothing is counted in rows, of key, and another key was meant.
func (c *Counts) UnlessMeant(ctx context.Context, matches []inspect.Match, rows []Row, key string) error {
	for i := range rows {
		if rows[i].IsCounted() || rows[i].Override != nil {
			return nil
		}
	}
	m := MeantBy(key)
	if m.Right == "" && !m.Sure {
		return nil
	}
	if m.Right == "" {
		return fmt.Errorf("nothing is counted for %s: %s", Printable(key), m.Reason)
	}
	meantMatches := make([]inspect.Match, len(matches))
	for i := range matches {
		if c.Service.HasDescriptors(matches[i].Policy.Name) {
			return nil
		}
		meantMatches[i] = matches[i]
		meantMatches[i].Key = m.Right
	}
	found, _ := c.ShowAll(ctx, meantMatches)
	for i := range found {
		if found[i].IsCounted() {
			return fmt.Errorf("nothing is counted for %s; did you mean %s, which has counts? %s", Printable(key), m.Right, sentence(m.Reason))
		}
	}
	if m.Sure {
		return fmt.Errorf("nothing is counted for %s; did you mean %s? %s", Printable(key), m.Right, sentence(m.Reason))
	}
	return nil
}

// CheckTarget returns why a change of the key under a policy of that name would have no effect, or
// nil. stored says that the policy is stored in Redis. If s is nil, the policy is not checked.
func CheckTarget(s *inspect.Service, policy, key string, stored bool) error {
	if s != nil && !stored && !s.Contains(policy) && !s.Remote() {
		return s.Unknown(policy)
	}
	if s != nil && s.HasDescriptors(policy) {
		_, err := s.Key([]string{policy}, key)
		return err
	}
	m := MeantBy(key)
	switch {
	case m.Sure && m.Right != "":
		return fmt.Errorf("%s is no key that is charged; did you mean %s? %s", Printable(key), m.Right, sentence(m.Reason))
	case m.Sure:
		return fmt.Errorf("%s is no key that is charged: %s", Printable(key), m.Reason)
	}
	return nil
}
