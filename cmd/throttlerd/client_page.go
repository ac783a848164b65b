package main

import (
	"net/http"
	"strings"

	"github.com/weir-go/weir/cmd/internal/clientpage"
	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
)

// clientPage returns the page about one client, for operators. The caller must call close.
func (sv *service) clientPage() (page http.Handler, close func() error, err error) {
	s := sv.settings
	if err := checkOperators(s.Operators); err != nil {
		return nil, nil, err
	}
	o := &clientpage.Options{
		Stack: sv.stack, Table: sv.table,
		Service: func() *inspect.Service {
			set := sv.rls.Set()
			if set == nil && sv.forward == nil {
				return nil
			}
			return inspect.Running(sv.stack.Config, set, sv.forward, s.Answers)
		},
		Kinds:     []clientpage.Kind{clientpage.Descriptors(), clientpage.Keys("edge?api_key=k7")},
		NoStore:   "policies_at in the file of WEIR_CONFIG must name the Redis server of overrides.",
		Operators: s.Operators, NoOperators: "For buttons that raise, block and reset, WEIR_OPERATORS_FILE must name a file with a NAME:PASSWORD in each line.",
		Label: operator.Hash, Log: sv.log,
	}
	if sv.forward != nil {
		o.Kinds = append(o.Kinds, clientpage.Of("address", "Address, of forward auth", "203.0.113.7", clientpage.AddressOf))
	}
	if s.ShowKeys {
		o.Label = strings.Clone
	}
	return clientpage.New(o)
}

func checkOperators(file string) error {
	if err := clientpage.CheckOperators("WEIR_OPERATORS_FILE", file); err != nil {
		return cmdline.Usage(err)
	}
	return nil
}
