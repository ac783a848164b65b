package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-go/weir/cmd/internal/clientpage"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/throttler"
)

// clientPage returns the page about one client, for operators. The caller must call close.
func (sv *service) clientPage() (page http.Handler, close func() error, err error) {
	s := sv.settings
	if err := checkOperators(s.Operators); err != nil {
		return nil, nil, err
	}
	bare := throttler.New(sv.stack.Backend, &throttler.Options{Clock: sv.stack.Clock()})
	o := &clientpage.Options{
		Counts: func() *operator.Counts {
			set := sv.rls.Set()
			if set == nil && !sv.hasForwardAuth {
				return nil
			}
			return &operator.Counts{Service: inspect.Running(sv.stack.Config, set, s.Answers), Throttler: bare, Table: sv.table}
		},
		Throttler: sv.stack.Throttler,
		Kinds:     []clientpage.Kind{clientpage.Descriptors(), clientpage.Keys("edge?api_key=k7")},
		NoStore:   "policies_at in the file of WEIR_CONFIG must name the Redis server of overrides.",
		Operators: s.Operators, NoOperators: "For buttons that raise, block and reset, WEIR_OPERATORS_FILE must name a file with a NAME:PASSWORD in each line.",
		Label: operator.Hash, Log: sv.log,
	}
	if sv.hasForwardAuth {
		o.Kinds = append(o.Kinds, clientpage.Of("address", "Address, of forward auth", "203.0.113.7", clientpage.AddressOf))
	}
	if s.ShowKeys {
		o.Label = strings.Clone
	}
	store, close, err := sv.stack.Config.OpenPolicies()
	switch {
	case err != nil:
		return nil, nil, err
	case store != nil:
		o.Store = store
	case sv.stack.Config.Backend == "memory":
		o.Store = clientpage.NewMemory(sv.table)
	}
	if close == nil {
		close = func() error { return nil }
	}
	return clientpage.New(o), close, nil
}

// checkOperators returns what is wrong with a file of operators, or nil if there is none.
func checkOperators(file string) error {
	if file == "" {
		return nil
	}
	if _, err := clientpage.ReadOperators(file); err != nil {
		return &usageError{fmt.Errorf("WEIR_OPERATORS_FILE: %w", err)}
	}
	return nil
}
