package forwardauth

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler/quota"
)

// Program contains the keys of a program with forward auth, for config.Options.Program.
type Program struct {
	ForwardAuth *Keys `yaml:"forward_auth"`
}

// Keys are the keys under forward_auth.
type Keys struct {
	Listen         config.ListenAddress
	TrustedProxies []config.ProxyNetwork `yaml:"trusted_proxies"`
	Dialect        dialect               // GitHub's if left out
	AmbiguousPaths ambiguity             `yaml:"ambiguous_paths"` // charge if left out
	Documentation  link                  `yaml:"documentation_url"`
	Rules          []rule
}

// IsStranger reports whether an address with its port is no trusted proxy's.
func (k *Keys) IsStranger(remote string) bool {
	client, err := netip.ParseAddrPort(remote)
	addr := client.Addr().Unmap().WithZone("")
	return err != nil || !slices.ContainsFunc(k.TrustedProxies, func(n config.ProxyNetwork) bool { return netip.Prefix(n).Contains(addr) })
}

// rule says what the requests that match it are charged. A condition left out matches all.
type rule struct {
	Hosts   []host
	Paths   []path
	Loose   bool // Paths match in any case, and whatever comes at the end
	Methods []method
	Headers map[headerName]string
	Charge  []charge
	Free    bool // charges nothing
}

// Charged returns the names of the policies that the rules charge.
func (k *Keys) Charged() (names []string) {
	for _, r := range k.Rules {
		for _, c := range r.Charge {
			names = append(names, c.policy)
		}
	}
	return names
}

// Check is called by package config after it has read the keys.
func (p *Program) Check(mustBe func(key, right string)) {
	if p.ForwardAuth == nil {
		return
	}
	for _, needed := range []struct {
		wrong      bool
		key, right string
	}{
		{p.ForwardAuth.Listen != "", "listen", "a host and a port, such as 127.0.0.1:8082"},
		{len(p.ForwardAuth.TrustedProxies) > 0, "trusted_proxies", "a list of the proxies' address ranges, such as [127.0.0.0/8]"},
		{len(p.ForwardAuth.Rules) > 0, "rules", "a list of rules, such as [{charge: [core by ip]}]"},
	} {
		if !needed.wrong {
			mustBe("forward_auth."+needed.key, needed.right)
		}
	}
	rules := p.ForwardAuth.Rules
	if len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool { return !r.Free }) {
		mustBe("forward_auth.rules", "a list with a rule that has charge: these limit nothing")
	}
	for i := range rules {
		place := fmt.Sprintf("forward_auth.rules[%d]", i)
		rules[i].check(func(key, right string) { mustBe(place+key, right) })
	}
}

// CheckTogether is called by package config if the file has no mistake yet: a rule with one may seem
// to be for all requests.
func (p *Program) CheckTogether(mustBe func(key, right string)) {
	if p.ForwardAuth == nil {
		return
	}
	rules := p.ForwardAuth.Rules
	for i := range rules {
		if j := slices.IndexFunc(rules[:i], func(r rule) bool { return r.contains(&rules[i]) }); j >= 0 {
			mustBe(fmt.Sprintf("forward_auth.rules[%d]", i), fmt.Sprintf("before rules[%d], or left out: that rule is for all of its requests", j))
		}
	}
}

// check reports what is wrong with r alone.
func (r *rule) check(mustBe func(key, right string)) {
	switch {
	case r.Free && len(r.Charge) > 0:
		mustBe(".free", "left out, because the rule charges")
	case !r.Free && len(r.Charge) == 0:
		mustBe("", "a rule with charge, such as {charge: [core by ip]}, or with free: true")
	case len(r.Charge) > quota.MaxCharges:
		mustBe(".charge", fmt.Sprintf("at most %d charges", quota.MaxCharges))
	case r.Loose && len(r.Paths) == 0:
		mustBe(".loose", "left out, because the rule has no paths")
	case r.Loose && r.Free:
		mustBe(".loose", "left out: a rule that charges nothing is for its exact paths")
	}
	for key, empty := range map[string]bool{
		"hosts": r.Hosts != nil && len(r.Hosts) == 0, "paths": r.Paths != nil && len(r.Paths) == 0,
		"methods": r.Methods != nil && len(r.Methods) == 0, "headers": r.Headers != nil && len(r.Headers) == 0,
	} {
		if empty {
			mustBe("."+key, "left out, for all, or not empty")
		}
	}
	for name, value := range r.Headers {
		if value == "" {
			mustBe(".headers."+string(name), "a value, or * for any")
		}
	}
	r.checkLists(func(key, right string) { mustBe("."+key, right) })
}

// checkLists reports the entries of r's lists that add nothing.
func (r *rule) checkLists(mustBe func(key, right string)) {
	for i := range r.Paths {
		for j := range r.Paths {
			if r.Paths[j].contains(&r.Paths[i]) && (i > j || !r.Paths[i].contains(&r.Paths[j])) {
				mustBe(fmt.Sprintf("paths[%d]", i), fmt.Sprintf("left out, because paths[%d] contains it", j))
				break
			}
		}
	}
	for i, h := range r.Hosts {
		for j, o := range r.Hosts {
			if i != j && o.contains(h) && (i > j || !h.contains(o)) {
				mustBe(fmt.Sprintf("hosts[%d]", i), fmt.Sprintf("left out, because hosts[%d] contains it", j))
				break
			}
		}
	}
	for i, m := range r.Methods {
		if slices.Contains(r.Methods[:i], m) {
			mustBe(fmt.Sprintf("methods[%d]", i), "left out, because it is there twice")
		}
	}
	for i, c := range r.Charge {
		if slices.ContainsFunc(r.Charge[:i], func(o charge) bool { return o.policy == c.policy && slices.Equal(o.keys, c.keys) }) {
			mustBe(fmt.Sprintf("charge[%d]", i), "left out, because it is there twice: a charge counts once")
		}
	}
}

// contains reports whether r is for all requests that other is for. It may miss that several
// lists together are.
func (r *rule) contains(s *rule) bool {
	for name, want := range r.Headers {
		if value, ok := s.Headers[name]; !ok || want != "*" && want != value {
			return false
		}
	}
	looseEnough := r.Loose || !s.Loose
	return covers(r.Methods, s.Methods, func(m, o method) bool { return m == o }) &&
		covers(r.Hosts, s.Hosts, host.contains) &&
		covers(r.Paths, s.Paths, func(p, o path) bool { return p.contains(&o) && (looseEnough || p.isAll()) })
}

// covers reports whether each entry of others is in an entry of list. An empty list is of all
// entries.
func covers[T any](list, narrower []T, contains func(entry, inner T) bool) bool {
	if len(list) == 0 {
		return true
	}
	return len(narrower) > 0 && !slices.ContainsFunc(narrower, func(o T) bool {
		return !slices.ContainsFunc(list, func(entry T) bool { return contains(entry, o) })
	})
}

// host is a host name in lower case, or all names under one, as *.example.com.
type host string

var hostForm = regexp.MustCompile(`^(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*$|^[0-9a-f:.]+$`)

func (h *host) UnmarshalText(text []byte) error {
	*h = host(strings.ToLower(string(text)))
	if !hostForm.MatchString(string(*h)) {
		return errors.New("it must be a host without a port, such as api.example.com, or *.example.com for all under it")
	}
	return nil
}

// contains reports whether h matches all names that other matches.
func (h host) contains(o host) bool {
	return h == o || strings.HasPrefix(string(h), "*") && strings.HasSuffix(string(o), string(h)[1:])
}

func (h host) matches(name string) bool {
	if suffix, ok := strings.CutPrefix(string(h), "*"); ok {
		return strings.HasSuffix(name, suffix) && len(name) > len(suffix)
	}
	return name == string(h)
}

type method string

// methods are the methods of HTTP, of WebDAV, and of caches.
var methods = strings.Fields("GET HEAD POST PUT PATCH DELETE OPTIONS TRACE CONNECT QUERY " +
	"ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT COPY LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE ORDERPATCH PROPFIND PROPPATCH REBIND REPORT SEARCH UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL " +
	"BAN PURGE REFRESH")

func (m *method) UnmarshalText(text []byte) error {
	*m = method(text)
	switch upper := strings.ToUpper(string(text)); {
	case slices.Contains(methods, string(text)):
		return nil
	case upper == "ANY" || upper == "ALL" || upper == "*":
		return errors.New("it must be a method, such as POST; for all methods, leave methods out")
	case slices.Contains(methods, upper):
		return fmt.Errorf("it must be a method in capitals: %s", upper)
	}
	return errors.New("it must be a method of HTTP or WebDAV in capitals, such as POST; for others, leave methods out")
}

type headerName string

var headerForm = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")

func (n *headerName) UnmarshalText(text []byte) error {
	*n = headerName(textproto.CanonicalMIMEHeaderKey(string(text)))
	if !headerForm.Match(text) {
		return errors.New("it must be the name of a header, such as X-Plan")
	}
	if *n == "Host" {
		return errors.New("it must be another header: hosts is for the request's host")
	}
	return nil
}

// link is the URL of a page.
type link string

func (l *link) UnmarshalText(text []byte) error {
	*l = link(text)
	if u, err := url.Parse(string(text)); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return errors.New("it must be the URL of a page, such as https://docs.example.com/limits")
	}
	return nil
}

// charge is a policy and a key in words, such as core by ip.
type charge struct {
	policy string
	keys   []string
}

const chargeForm = "it must be a policy and a key, such as core by ip, or core by header:X-API-Key and host; keys are ip, host, method, everyone and header:NAME"

func (c *charge) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	if len(words) < 3 || words[1] != "by" || len(words)%2 == 0 {
		return errors.New(chargeForm)
	}
	c.policy, c.keys = words[0], nil
	for i, word := range words[2:] {
		if i%2 == 1 {
			if word != "and" {
				return errors.New(chargeForm)
			}
			continue
		}
		name, isHeader := strings.CutPrefix(word, "header:")
		isWord := slices.Contains([]string{"ip", "host", "method", "everyone"}, strings.ToLower(name))
		if isHeader && (isWord || !headerForm.MatchString(name)) || !isHeader && (!isWord || word != strings.ToLower(word)) {
			return errors.New(chargeForm) // a header with the name of a word would have the same keys as that word
		}
		if isHeader && slices.Contains(forwardHeaders, textproto.CanonicalMIMEHeaderKey(name)) {
			return errors.New("it must be by ip: a client chooses what it sends in this header, and ip is the address that a trusted proxy has seen")
		}
		c.keys = append(c.keys, word)
	}
	return nil
}

// forwardHeaders are headers to which proxies append an address.
var forwardHeaders = []string{"X-Forwarded-For", "Forwarded"}

// key returns the middleware's key. If a header is missing, the address replaces it, so that a
// client gains no quota by leaving it out.
func (c *charge) key(ip middleware.Key) middleware.Key {
	var joined []middleware.Key
	for _, word := range c.keys {
		switch name, _ := strings.CutPrefix(word, "header:"); word {
		case "ip":
			joined = append(joined, ip)
		case "everyone":
			joined = append(joined, middleware.Everyone())
		case "host":
			joined = append(joined, keyOf("host:", func(f *forwarded) string { return f.host }))
		case "method":
			joined = append(joined, keyOf("method:", func(f *forwarded) string { return f.method }))
		default:
			kind := strings.ToLower(name) + ":"
			joined = append(joined, middleware.FirstOf(middleware.KeyFunc(func(r *http.Request) (string, bool) {
				value := r.Header.Get(name)
				return kind + value, value != ""
			}), ip))
		}
	}
	if len(joined) == 1 {
		return joined[0]
	}
	return middleware.Join(joined...)
}

func keyOf(kind string, read func(*forwarded) string) middleware.Key {
	return middleware.KeyFunc(func(r *http.Request) (string, bool) {
		return kind + read(forwardedOf(r)), true
	})
}

// ambiguity is what happens to a path that servers read in different ways.
type ambiguity string

const refuseAmbiguous ambiguity = "refuse"

func (a *ambiguity) UnmarshalText(text []byte) error {
	if *a = ambiguity(text); *a != "charge" && *a != refuseAmbiguous {
		return errors.New("it must be charge, for every rule that one reading of the path matches, or refuse")
	}
	return nil
}

// dialect is the name of a dialect of rate limit headers.
type dialect string

var dialects = map[dialect]middleware.Dialect{
	"": middleware.GitHub{}, "github": middleware.GitHub{}, "ietf": middleware.IETF{}, "draft-3": middleware.Draft3{}, "none": middleware.NoHeaders{},
}

func (d *dialect) UnmarshalText(text []byte) error {
	*d = dialect(text)
	if dialects[*d] == nil || *d == "" {
		return errors.New("it must be github, ietf, draft-3 or none")
	}
	return nil
}

func (r *rule) usesHosts() bool {
	return len(r.Hosts) > 0 || slices.ContainsFunc(r.Charge, func(c charge) bool { return slices.Contains(c.keys, "host") })
}

// match says whether a rule is for a request.
type match uint8

const (
	no    match = iota
	maybe       // for some servers
	yes
)

// matches says whether the rule is for a request by a reading of its path. It may be if the
// request has no host, or if the path is another spelling of the rule's.
func (r *rule) matches(f *forwarded, reading string, header http.Header) match {
	found := yes
	switch {
	case len(r.Hosts) == 0:
	case f.host == "":
		found = maybe
	case !slices.ContainsFunc(r.Hosts, func(h host) bool { return h.matches(f.host) }):
		return no
	}
	if len(r.Methods) > 0 && !slices.Contains(r.Methods, method(f.method)) {
		return no
	}
	for name, want := range r.Headers {
		values := header[string(name)]
		if len(values) == 0 || want != "*" && !slices.Contains(values, want) {
			return no
		}
	}
	current := func(loose bool) bool {
		return slices.ContainsFunc(r.Paths, func(p path) bool { return p.matches(reading, loose) })
	}
	switch {
	case len(r.Paths) == 0, current(false):
		return found
	case r.Loose && current(true):
		return maybe
	}
	return no
}
