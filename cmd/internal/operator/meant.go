package operator

import (
	"context"
	"fmt"
	"net/http"
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

// The keys that the middleware has by default.
var (
	Address = middleware.ClientIP(nil)
	Subject = middleware.Subject(func(*http.Request) (string, bool) { return "", false })
)

// MeantBy returns the key that a program charges when an operator writes key, if that is another.
func MeantBy(key string) Suggestion {
	address, prefixed := strings.CutPrefix(key, "ip:")
	right, wrong := Address.For(address)
	switch p, err := netip.ParsePrefix(address); {
	case key == "subject:":
		return Suggestion{"", "a caller without a subject has no such key", true}
	case wrong == nil && right == key:
		return Suggestion{}
	case wrong == nil:
		return Suggestion{right, "middleware.ClientIP and forward auth charge addresses in that form", true}
	case err == nil && p.Addr().Unmap().Is4():
		return Suggestion{"", "each address of IPv4 is charged alone, and no range is", true}
	case err == nil && key != "ip:"+p.Masked().String():
		return Suggestion{"ip:" + p.Masked().String(), "clients of IPv6 are charged for the beginning of their address", true}
	case err == nil: // the keys of a program with another IPv6Prefix, or an IPv6Chain
		right, _ = Address.For(p.Addr().String())
		return Suggestion{right, "clients of IPv6 are charged for a /64 unless the program's IPv6Prefix is another", false}
	case prefixed || strings.ContainsAny(key, ":?"):
		return Suggestion{}
	}
	right, _ = Subject.For(key)
	return Suggestion{right, "callers that are authenticated are charged in that form", false}
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
