package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

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
	isStored := stored != nil || err != nil
	if !isStored && service == nil {
		return "", "", fmt.Errorf("policy %q is not stored in Redis, and nothing says whether the program has it: -config or WEIR_CONFIG must be its file, or -env throttlerd's environment%s", policy, otherwise)
	}
	if err := operator.CheckTarget(service, policy, key, isStored); err != nil {
		return "", "", fmt.Errorf("%w%s", err, otherwise)
	}
	if service == nil || service.HasDescriptors(policy) || !service.Contains(policy) || service.Policy(policy) == nil {
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
	r := &operator.Counts{Service: service, Throttler: stack.Throttler}
	match := []inspect.Match{{Policy: service.Policy(policy), Key: key}}
	rows, failed := r.ShowAll(ctx, match)
	if failed > 0 {
		return ""
	}
	for i := range rows {
		if rows[i].IsCounted() {
			return ""
		}
	}
	if err := r.UnlessMeant(ctx, match, rows, key); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("nothing is counted for %s under %s yet; the key must be as the program charges it", operator.Printable(key), policy)
}

var hashForm = regexp.MustCompile(`^[A-Za-z0-9_-]{16}$`)

func isHash(text string) bool {
	sum, err := base64.RawURLEncoding.DecodeString(text)
	return hashForm.MatchString(text) && err == nil && len(sum) == 12 && strings.ContainsAny(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
}

// keyOf returns the key that has a hash, as top shows it. It tries the keys of the overrides, and
// each word of file, as it is and as an address or a subject.
func (r *counter) keyOf(ctx context.Context, hash, file string) (found string, err error) {
	ok := false
	try := func(key string) bool {
		if operator.Hash(key) == hash {
			found, ok = key, true
		}
		return ok
	}
	if r.Store != nil {
		if err := r.Store.Overrides(ctx, func(v policies.Override) bool { return !try(v.Key) }); err != nil {
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
				subject, _ := operator.Subject.For(text)
				if try(text) || try(operator.MeantBy(text).Right) || try(subject) || r.tryDescribed(text, try) {
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
	for _, key := range r.Service.KeysWith(text) {
		if try(key) {
			return true
		}
	}
	return false
}
