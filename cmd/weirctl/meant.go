package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"strings"

	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// suggestion is a key that may have been meant by another.
type suggestion struct {
	right  string // "" if there is none
	reason string
	sure   bool // no key of package middleware has the other form
}

// meantBy returns the key that a program charges when an operator writes key, if that is another.
func meantBy(key string) suggestion {
	address, prefixed := strings.CutPrefix(key, "ip:")
	if p, err := netip.ParsePrefix(address); err == nil {
		switch right := "ip:" + p.Masked().String(); {
		case p.Addr().Unmap().Is4() && p.Bits() == p.Addr().BitLen():
			return suggestion{middleware.AddressKey(p.Addr(), nil), "an address of IPv4 has no length", true}
		case p.Addr().Unmap().Is4():
			return suggestion{"", "each address of IPv4 is charged alone, and no range is", true}
		case right != key:
			return suggestion{right, "clients of IPv6 are charged for the beginning of their address", true}
		case p.Bits() != 64:
			return suggestion{middleware.AddressKey(p.Addr(), nil), "clients of IPv6 are charged for a /64 unless the program's IPv6Prefix is another", false}
		}
		return suggestion{}
	}
	addr, err := netip.ParseAddr(strings.Trim(address, "[]"))
	if err != nil {
		var port netip.AddrPort
		port, err = netip.ParseAddrPort(address)
		addr = port.Addr()
	}
	if err == nil {
		if right := middleware.AddressKey(addr, nil); right != key {
			return suggestion{right, "middleware.ClientIP and forward auth charge addresses in that form", true}
		}
		return suggestion{}
	}
	if prefixed || strings.ContainsAny(key, ":?") {
		return suggestion{}
	}
	return suggestion{middleware.SubjectKey(key), "callers that are authenticated are charged in that form", false}
}

// unlessMeant returns an error if nothing is counted in rows, of key, and another key was meant.
func (r *counter) unlessMeant(ctx context.Context, matches []inspect.Match, rows []shown, key string) error {
	for i := range rows {
		if rows[i].isCounted() || rows[i].Override != nil {
			return nil
		}
	}
	m := meantBy(key)
	if m.right == "" && !m.sure {
		return nil
	}
	if m.right == "" {
		return fmt.Errorf("nothing is counted for %s: %s", printable(key), m.reason)
	}
	meantMatches := make([]inspect.Match, len(matches))
	for i := range matches {
		if r.service.HasDescriptors(matches[i].Policy.Name) {
			return nil
		}
		meantMatches[i] = matches[i]
		meantMatches[i].Key = m.right
	}
	found, _ := r.showAll(ctx, meantMatches)
	for i := range found {
		if found[i].isCounted() {
			return fmt.Errorf("nothing is counted for %s; did you mean %s, which has counts? %s", printable(key), m.right, sentence(m.reason))
		}
	}
	if m.sure {
		return fmt.Errorf("nothing is counted for %s; did you mean %s? %s", printable(key), m.right, sentence(m.reason))
	}
	return nil
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// target checks the policy and the key of an override, and returns the policy's name. The error
// says what would be right. note is for the operator, or "".
func (o *server) target(ctx context.Context, s *redispolicies.Store, policy, key string) (name, note string, err error) {
	if o.unchecked {
		return policy, "", nil
	}
	const otherwise = "; -unchecked sets it all the same"
	service, err := o.read()
	switch {
	case errors.Is(err, inspect.ErrNothing):
		service = nil
	case err != nil:
		return "", "", fmt.Errorf("the policy and the key can't be checked: %w%s", err, otherwise)
	default:
		policy = service.PolicyName(policy)
	}
	stored, err := s.FindPolicy(ctx, policy)
	if err := unlessInvalid(err); err != nil {
		return "", "", err
	}
	found := stored != nil || err != nil || service != nil && (service.Contains(policy) || service.Remote())
	switch {
	case !found && service == nil:
		return "", "", fmt.Errorf("policy %q is not stored in Redis, and nothing says whether the program has it: -config or WEIR_CONFIG must be its file, or -env throttlerd's environment%s", policy, otherwise)
	case !found:
		return "", "", fmt.Errorf("%w%s", service.Unknown(policy), otherwise)
	case service != nil && service.HasDescriptors(policy):
		if _, err := service.Key([]string{policy}, key); err != nil {
			return "", "", fmt.Errorf("%w%s", err, otherwise)
		}
		return policy, "", nil
	}
	if m := meantBy(key); m.sure && m.right != "" {
		return "", "", fmt.Errorf("%s is no key that is charged; did you mean %s? %s%s", printable(key), m.right, sentence(m.reason), otherwise)
	} else if m.sure {
		return "", "", fmt.Errorf("%s is no key that is charged: %s%s", printable(key), m.reason, otherwise)
	}
	if service == nil || !service.Contains(policy) || service.Policy(policy) == nil {
		return policy, "", nil
	}
	return policy, o.counted(ctx, service, policy, key), nil
}

// counted returns a note about a key without a count: another key was perhaps meant.
func (o *server) counted(ctx context.Context, service *inspect.Service, policy, key string) string {
	stack, err := service.Config.OpenStore("")
	if err != nil {
		return "" // counts in memory
	}
	defer closing(stack)
	r := &counter{service: service, stack: stack}
	match := []inspect.Match{{Policy: service.Policy(policy), Key: key}}
	rows, failed := r.showAll(ctx, match)
	if failed > 0 {
		return ""
	}
	for i := range rows {
		if rows[i].isCounted() {
			return ""
		}
	}
	if err := r.unlessMeant(ctx, match, rows, key); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("nothing is counted for %s under %s yet; the key must be as the program charges it", printable(key), policy)
}

var hashForm = regexp.MustCompile(`^[A-Za-z0-9_-]{16}$`)

func isHash(text string) bool {
	sum, err := base64.RawURLEncoding.DecodeString(text)
	return hashForm.MatchString(text) && err == nil && len(sum) == 12 && strings.ContainsAny(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
}

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// keyOf returns the key of a hash, as top shows it: one of the overrides, or one that is in file,
// as it is there or in the form of an address or a subject.
func (r *counter) keyOf(ctx context.Context, hash, file string) (found string, err error) {
	ok := false
	try := func(key string) bool {
		if hashOf(key) == hash {
			found, ok = key, true
		}
		return ok
	}
	if r.store != nil {
		if err := r.store.Overrides(ctx, func(v policies.Override) bool { return !try(v.Key) }); err != nil {
			return "", err
		}
	}
	if !ok && file != "" {
		input := io.Reader(os.Stdin)
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				return "", fmt.Errorf("-keys: %w", err)
			}
			defer closing(f)
			input = f
		}
		lines := bufio.NewScanner(input)
		lines.Buffer(nil, 1<<20)
		for !ok && lines.Scan() {
			for _, text := range append(strings.Fields(lines.Text()), lines.Text()) {
				if try(text) || try(meantBy(text).right) || try(middleware.SubjectKey(text)) || r.tryDescribed(text, try) {
					break
				}
			}
		}
		if err := lines.Err(); err != nil {
			return "", fmt.Errorf("-keys: %w", err)
		}
	}
	if !ok {
		return "", fmt.Errorf("%s is the hash of no key of an override, and of none in -keys; a hash can't be turned back: name a file with candidates, such as an access log with addresses, or have the processes show keys (WEIR_SHOW_KEYS of throttlerd)", hash)
	}
	return found, nil
}

// tryDescribed tries the keys of all rules with one entry, with text as its value.
func (r *counter) tryDescribed(text string, try func(string) bool) bool {
	for _, key := range r.service.KeysWith(text) {
		if try(key) {
			return true
		}
	}
	return false
}
