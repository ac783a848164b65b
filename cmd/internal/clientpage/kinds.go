package clientpage

import (
	"errors"
	"strings"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/middleware"
)

// AddressOf returns the key that is charged for requests from an address: of IPv6, from its /64.
func AddressOf(text string) (key string, err error) {
	return keyOf(operator.Address, strings.Trim(text, "[]"))
}

// SubjectOf returns the key that is charged for requests of a user.
func SubjectOf(name string) (key string, err error) { return keyOf(operator.Subject, name) }

func keyOf(k middleware.Key, text string) (string, error) {
	key, err := k.For(text)
	if err != nil {
		return "", errors.New(strings.TrimPrefix(err.Error(), "middleware: Key.For: "))
	}
	return key, nil
}

// Of returns a Kind of clients with one key, under these policies; under each of the configuration
// if there are none.
func Of(name, label, example string, keyOf func(text string) (string, error), policies ...string) Kind {
	return Kind{Name: name, Label: label, Example: example, Find: func(c *operator.Counts, text string, _ *operator.Explanation) ([]inspect.Match, error) {
		key, err := keyOf(text)
		if err != nil {
			return nil, err
		}
		return c.Service.Key(policies, key)
	}}
}

// Descriptors is the Kind of requests to a rate limit service: a domain and entries.
func Descriptors() Kind {
	return Kind{Name: "descriptors", Label: "Descriptors", Example: "edge api_key=k7", Find: func(c *operator.Counts, text string, e *operator.Explanation) ([]inspect.Match, error) {
		words := strings.Fields(text)
		if len(words) < 2 {
			return nil, errors.New("the descriptors must be a domain and entries, such as edge api_key=k7, with a + between two descriptors")
		}
		descriptors, err := operator.ParseDescriptors(words[1:])
		if err != nil {
			return nil, err
		}
		return e.Descriptors(c.Service, words[0], descriptors)
	}}
}
