package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/weir-go/weir/cmd/internal/clientpage"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/throttler/policies"
)

// callerPolicies are the policies that charge a caller, without those within an organisation.
var callerPolicies = []string{corePolicy, searchPolicy, createTokenPolicy, secondaryPolicy, streamsPolicy}

// clientPage returns the page about one client, for operators. The caller must call close.
func (s *settings) clientPage(stack *config.Stack, table *policies.Table, log *slog.Logger) (page http.Handler, close func() error, err error) {
	if err := s.checkOperators(stack.Config); err != nil {
		return nil, nil, err
	}
	service := inspect.RunningFile(stack.Config)
	return clientpage.New(&clientpage.Options{
		Stack: stack, Table: table, Service: func() *inspect.Service { return service },
		Kinds: []clientpage.Kind{
			clientpage.Of("user", "User", "alice", clientpage.SubjectOf, callerPolicies...),
			clientpage.Of("address", "Address", "203.0.113.7", clientpage.AddressOf, callerPolicies...),
			clientpage.Of("organisation", "Organisation", "acme", organisationOf, orgPolicy),
			{Name: "member", Label: "Member of an organisation", Example: "acme/alice", Find: findMember},
			clientpage.Keys("subject:alice"),
		},
		NoStore:   "policies_at in the configuration must name the Redis server of overrides.",
		Operators: s.operatorsFile(stack.Config), NoOperators: "For buttons that raise, block and reset, operators_file in the configuration must name a file with a NAME:PASSWORD in each line.",
		Label: operator.Hash, Log: log,
	})
}

// operatorsFile returns the name of the file of operators, or "". In the configuration it is
// relative to the directory of the configuration's file.
func (s *settings) operatorsFile(c *config.Config) string {
	if s.OperatorsFile == "" || filepath.IsAbs(s.OperatorsFile) {
		return s.OperatorsFile
	}
	return filepath.Join(filepath.Dir(c.File), s.OperatorsFile)
}

func (s *settings) checkOperators(c *config.Config) error {
	return clientpage.CheckOperators("operators_file", s.operatorsFile(c))
}

func organisationOf(name string) (string, error) { return organisationKey(name), nil }

// findMember returns the count of a member of an organisation: a user, or an address.
func findMember(c *operator.Counts, text string, _ *operator.Explanation) ([]inspect.Match, error) {
	org, member, ok := strings.Cut(text, "/")
	if !ok || org == "" || member == "" {
		return nil, fmt.Errorf("the member is %q; it must be an organisation, a slash and a user or an address, such as acme/alice", text)
	}
	key, err := clientpage.AddressOf(member)
	if err != nil {
		key, err = clientpage.SubjectOf(member)
	}
	if err != nil {
		return nil, err
	}
	matches, err := c.Service.Key([]string{memberPolicy}, key)
	for i := range matches {
		matches[i].Partition = organisationKey(org)
	}
	return matches, err
}
