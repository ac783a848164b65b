package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/config"
)

// settings are the demo's own keys in its configuration.
type settings struct {
	Listen         config.ListenAddress
	DebugListen    debugAddress `yaml:"debug_listen"`
	Tokens         tokens
	TrustedProxies []config.ProxyNetwork `yaml:"trusted_proxies"`
	LivePolicies   string                `yaml:"live_policies"`  // a file of policies and overrides in JSON
	OperatorsFile  string                `yaml:"operators_file"` // a file with a NAME:PASSWORD in each line
}

func defaultSettings() *settings {
	return &settings{Listen: "127.0.0.1:8080", DebugListen: "127.0.0.1:0", Tokens: tokens{
		"demo-alice": {Subject: "alice"}, "demo-bob": {Subject: "bob"}, "demo-carol": {Subject: "carol", Plan: proPolicy},
	}}
}

// Check is called by package config after it has read the settings.
func (s *settings) Check(mustBe func(key, right string)) {
	if string(s.DebugListen) == string(s.Listen) && !strings.HasSuffix(string(s.Listen), ":0") {
		mustBe("debug_listen", "another address than listen")
	}
}

// warnings names settings that are allowed, but hardly intended.
func (s *settings) warnings() (texts []string) {
	if s.Tokens.exist() {
		texts = append(texts, "tokens is any: every invented token gets a fresh quota; that is for tests and load, not for clients")
	}
	if s.DebugListen != "" && !isLoopback(string(s.DebugListen)) {
		texts = append(texts, fmt.Sprintf("debug_listen is %s, which is not on loopback: other machines may reach it, and it has no password", s.DebugListen))
	}
	return texts
}

// isLoopback reports whether an address can be reached only from this machine.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// debugAddress is the address of /debug, or "" if it is off.
type debugAddress config.Address

func (a *debugAddress) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		*a = ""
		return nil
	}
	return (*config.Address)(a).UnmarshalText(text)
}

// tokens are the bearer tokens that the demo knows. A caller without a token is counted by
// address.
type tokens map[token]struct {
	Subject string // the token itself if left out
	Plan    string // the name of a policy, or *unlimited or *blocked; core, if left out
}

// anyToken is in tokens if every token is its own caller.
const anyToken = ""

func (t *tokens) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.MappingNode {
		type long tokens
		*t = nil // not the demo's own
		return node.Load((*long)(t), yaml.WithKnownFields())
	}
	if node.Value != "any" {
		return errors.New("it must be any, or a mapping of tokens, such as {demo-alice: {subject: alice}}")
	}
	*t = tokens{anyToken: {}}
	return nil
}

func (t tokens) exist() bool {
	_, ok := t[anyToken]
	return ok
}

// subject returns the subject of a token.
func (t tokens) subject(text string) (subject string, ok bool) {
	if t.exist() {
		sum := sha256.Sum256([]byte(text)) // the token can be of any length, and secret
		return hex.EncodeToString(sum[:]), true
	}
	user, ok := t[token(text)]
	return cmp.Or(user.Subject, text), ok
}

// madeUp returns the configured tokens that are not secret: the demo's own.
func (s *settings) madeUp() (texts []string) {
	for t := range defaultSettings().Tokens {
		if _, ok := s.Tokens[t]; ok {
			texts = append(texts, string(t))
		}
	}
	slices.Sort(texts)
	return texts
}

// token has the form of RFC 6750: other text can't be sent.
type token string

var tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)

func (t *token) UnmarshalText(text []byte) error {
	if !tokenForm.Match(text) {
		return errors.New("it must be letters, digits and - . _ ~ + /, with = at its end alone, to be sent")
	}
	*t = token(text)
	return nil
}

func (s *settings) trustedProxies() (prefixes []netip.Prefix) {
	for _, n := range s.TrustedProxies {
		prefixes = append(prefixes, netip.Prefix(n))
	}
	return prefixes
}
