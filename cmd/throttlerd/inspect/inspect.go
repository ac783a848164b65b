// Package inspect reads the configuration of throttlerd, or of another program, as an operator
// does: which rules hold for a request, and which counts they have.
package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/files"
	"github.com/weir-go/weir/cmd/throttlerd/internal/forwardauth"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/observe"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// Service is the configuration of a program.
type Service struct {
	Config *config.Config

	// Overrides reports that the program reads policies and overrides from the server that
	// Config.OpenPolicies opens.
	Overrides bool

	set     *descriptors.Set // nil without files of descriptors
	forward *forwardauth.Keys
	answers settings.Answers
	remote  bool // descriptors come from a management server
	dir     string
}

// ErrNothing is returned if the environment names no configuration.
var ErrNothing = errors.New("nothing says where the counts are")

// throttlerds are variables that only throttlerd has.
var throttlerds = []string{"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "REDIS_URL", "REDIS_SOCKET_TYPE", "MEMCACHE_HOST_PORT", "CONFIG_TYPE"}

// read are the beginnings of the variables that matter. Others, such as PORT, may be another
// program's.
var read = []string{"WEIR_", "RUNTIME_", "REDIS_", "MEMCACHE_", "BACKEND_TYPE", "CACHE_KEY_PREFIX", "CONFIG_TYPE", "MERGE_DOMAIN_CONFIG", "SHADOW_MODE", "QUOTA_MODE"}

// Read reads the configuration that an environment names: the file of WEIR_CONFIG, and
// throttlerd's variables and files of descriptors. programKeys are keys of the file that are the
// program's.
func Read(environ, programKeys []string) (*Service, error) {
	vars := make(map[string]string)
	var used []string
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if slices.ContainsFunc(read, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			vars[name], used = value, append(used, v)
		}
	}
	isThrottlerd := slices.ContainsFunc(throttlerds, func(name string) bool { return vars[name] != "" })
	if !isThrottlerd && vars["WEIR_CONFIG"] == "" {
		return nil, ErrNothing
	}
	st, err := settings.Read(used)
	if err != nil {
		return nil, err
	}
	s := &Service{answers: st.Answers}
	program := reflect.New(programOf(programKeys))
	s.Config, err = st.Config(&config.Options{Program: program.Interface(), Observer: observe.Nothing{}, Log: slog.New(slog.DiscardHandler), Levels: true, Table: new(policies.Table), CountsHavePolicies: true})
	if err != nil {
		return nil, err
	}
	s.forward, _ = program.Elem().Field(0).Interface().(*forwardauth.Keys)
	s.Overrides = isThrottlerd || s.forward != nil || s.Config.HasPoliciesAt()
	if !isThrottlerd {
		return s, nil
	}
	if st.ConfigType != "FILE" {
		s.remote = true
		return s, nil
	}
	return s, s.readDescriptors(st)
}

// Running returns the configuration of a running program: its file, and the rules of descriptors in
// force and how they are answered. set is nil without descriptors, and forward without forward auth.
func Running(c *config.Config, set *descriptors.Set, forward *forwardauth.Keys, answers settings.Answers) *Service {
	return &Service{Config: c, Overrides: true, set: set, forward: forward, answers: answers, dir: "the descriptors in force"}
}

// RunningFile returns the configuration of a running program that has no descriptors.
func RunningFile(c *config.Config) *Service { return Running(c, nil, nil, settings.Answers{}) }

// programOf returns the struct of the keys that config.Options.Program reads.
func programOf(programKeys []string) reflect.Type {
	forward := reflect.StructField{Name: "ForwardAuth", Type: reflect.TypeFor[*forwardauth.Keys](), Tag: `yaml:"forward_auth"`}
	if slices.Contains(programKeys, "forward_auth") {
		forward.Type = reflect.TypeFor[yaml.Node]()
	}
	fields := []reflect.StructField{forward}
	for i, key := range programKeys {
		if key != "forward_auth" {
			fields = append(fields, reflect.StructField{Name: fmt.Sprint("Key", i), Type: reflect.TypeFor[yaml.Node](), Tag: reflect.StructTag(fmt.Sprintf("yaml:%q", key))})
		}
	}
	return reflect.StructOf(fields)
}

func (s *Service) readDescriptors(st *settings.Settings) error {
	w := &files.Watcher{Dir: filepath.Join(st.Root, st.Subdirectory, st.AppDirectory), IgnoreDotFiles: st.IgnoreDotFiles}
	s.dir = w.Dir
	texts, err := w.Read()
	if errors.Is(err, fs.ErrNotExist) && s.forward != nil {
		return nil
	}
	if err != nil {
		return err
	}
	list, err := descriptors.Parse(w.Dir, texts, s.Config.Supports)
	if err != nil {
		return err
	}
	s.set, err = descriptors.New(list, st.MergeDomainConfig, st.Compatible)
	return err
}

// Remote reports whether descriptors come from a management server, so that their names are not
// known here.
func (s *Service) Remote() bool { return s.remote }

// HasDescriptors reports whether a policy is one of descriptors.
func (s *Service) HasDescriptors(name string) bool { return len(s.rulesOf(name)) > 0 }

// Match is a count that a request is charged to.
type Match struct {
	Descriptor int           // the index of the request's descriptor
	Rule       string        // its path in the descriptors, or its place under forward_auth; "" if only the key was asked for
	Policy     *quota.Policy // as configured
	Key        string
	Partition  string   // the key that the count is within; the key itself if empty
	Unlimited  bool     // the rule allows everything
	RefusesAll bool     // the rule allows 0 requests
	Shadow     bool     // the rule never refuses
	Quota      bool     // the rule refuses only with all others of this mode
	Name       string   // that other rules may replace; may be empty
	Replaces   []string // names of rules that this one replaces
	Level      consistency.Level
	Note       string // such as another order of the entries
}

// Entry is an entry of a descriptor.
type Entry struct{ Key, Value string }

// Descriptor returns the rule of a descriptor, if there is one, with the entries in the order of
// the rules. The error says what would be right.
func (s *Service) Descriptor(domain string, entries []Entry) (list []Match, err error) {
	switch {
	case s.remote:
		return nil, errors.New("the descriptors come from a management server; /rlconfig on the debug port of a process has its rules")
	case s.set == nil:
		return nil, errors.New("there are no files of descriptors; RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY must name their directory, as for throttlerd")
	}
	d := s.set.Domain(domain)
	if d == nil {
		names := s.set.Names()
		return nil, fmt.Errorf("%q is no domain of %s; %s", domain, s.dir, oneOf(domain, names, "the domains are "))
	}
	for i, order := range orders(entries) {
		r, key := d.Match(nil, protos(order))
		if r == nil {
			continue
		}
		m := s.matchOf(r, string(key))
		if i > 0 {
			m.Note = "the rule has the entries in this order: a request with another order has no limit"
			if list != nil {
				continue
			}
		}
		return append(list, m), nil
	}
	return nil, fmt.Errorf("no rule of %s is for %s: a rule must have the same keys, and no more or fewer; the rules are %s", domain, texts(entries), s.pathsOf(domain))
}

func (s *Service) matchOf(r *descriptors.Rule, key string) Match {
	return Match{Rule: r.Path, Policy: r.Policy, Key: key, Unlimited: r.Unlimited, RefusesAll: r.RefusesAll, Name: r.Name, Replaces: r.Replaces, Shadow: r.Shadow || s.answers.ShadowMode, Quota: r.Quota || s.answers.QuotaMode, Level: r.Level}
}

// maxOrdered bounds the entries whose orders are tried: 720 orders.
const maxOrdered = 6

// orders returns all orders of entries, the given one first.
func orders(entries []Entry) (list [][]Entry) {
	if len(entries) > maxOrdered {
		return [][]Entry{entries}
	}
	if len(entries) < 2 {
		return [][]Entry{entries}
	}
	for i := range entries {
		remaining := slices.Delete(slices.Clone(entries), i, i+1)
		for _, order := range orders(remaining) {
			list = append(list, append([]Entry{entries[i]}, order...))
		}
	}
	return list
}

func protos(entries []Entry) (list descriptors.Entries) {
	for _, e := range entries {
		list = append(list, descriptors.NewEntry(e.Key, e.Value))
	}
	return list
}

func texts(entries []Entry) string {
	var list []string
	for _, e := range entries {
		list = append(list, e.Key+"="+e.Value)
	}
	return strings.Join(list, " ")
}

func (s *Service) pathsOf(domain string) string {
	var list []string
	for _, r := range s.set.Rules() {
		if r.Labels.Domain == domain {
			list = append(list, r.Path)
		}
	}
	const maxNamed = 12
	if len(list) > maxNamed {
		list = append(list[:maxNamed], fmt.Sprintf("and %d more", len(list)-maxNamed))
	}
	return strings.Join(list, ", ")
}

// Forwarded returns the counts that forward auth charges for a request from an address.
func (s *Service) Forwarded(address string, r *http.Request) (list []Match, err error) {
	if s.forward == nil {
		return nil, errors.New("there is no forward_auth in the configuration")
	}
	charged, ambiguous, err := forwardauth.Explain(s.Config, s.forward, address, r)
	if err != nil {
		return nil, err
	}
	for _, c := range charged {
		m := Match{Rule: fmt.Sprintf("forward_auth.rules[%d]", c.Rule), Policy: c.Policy, Key: c.Key, Level: s.Config.Levels[c.Policy.Name]}
		if ambiguous {
			m.Note = "the path can be read in several ways"
		}
		list = append(list, m)
	}
	if len(list) == 0 {
		return nil, errors.New("no rule of forward_auth charges this request: it is allowed")
	}
	return list, nil
}

// Names returns the names of all policies of the configuration, in order.
func (s *Service) Names() []string {
	names := slices.Collect(maps.Keys(s.Config.Policies))
	for _, p := range s.Config.DryRuns {
		names = append(names, p.Name)
	}
	if s.set != nil {
		for _, r := range s.set.Rules() {
			names = append(names, r.Policy.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Policy returns a policy of the file of WEIR_CONFIG, or nil.
func (s *Service) Policy(name string) *quota.Policy {
	for _, p := range s.Config.DryRuns {
		if p.Name == name {
			return p
		}
	}
	return s.Config.Policies[name]
}

// rulesOf returns the rules of descriptors whose policy has a name, or which have it as their
// path.
func (s *Service) rulesOf(name string) (list []*descriptors.Rule) {
	if s.set == nil {
		return nil
	}
	for _, r := range s.set.Rules() {
		if r.Policy.Name == name || r.Path == name {
			list = append(list, r)
		}
	}
	return list
}

// PolicyName returns the name of a policy that may be given as the path of a rule.
func (s *Service) PolicyName(name string) string {
	if list := s.rulesOf(name); len(list) > 0 && s.Policy(name) == nil {
		return list[0].Policy.Name
	}
	return name
}

// Key returns the counts of a key under the named policies, or under all that it can be for if
// there are none. The error says which key, or name, would be right.
func (s *Service) Key(names []string, key string) (list []Match, err error) {
	described := s.set != nil && len(names) == 0 && s.domainOf(key) != ""
	if len(names) == 0 && !described {
		for name := range s.Config.Policies {
			names = append(names, name)
		}
		for _, p := range s.Config.DryRuns {
			names = append(names, p.Name)
		}
		slices.Sort(names)
	}
	if described {
		domain, entries, _ := parse(key)
		list, err := s.Descriptor(domain, entries)
		if err == nil && list[0].Key != key {
			err = fmt.Errorf("the key is %s; it must be %s", key, list[0].Key)
		}
		return list, err
	}
	for _, name := range names {
		if p := s.Policy(name); p != nil {
			list = append(list, Match{Policy: p, Key: key, Level: s.Config.Levels[strings.TrimSuffix(name, ".dry-run")]})
			continue
		}
		rules := s.rulesOf(name)
		if len(rules) == 0 {
			return nil, s.Unknown(name)
		}
		m, err := s.described(rules, key)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// Unknown returns the error about a name that no policy of the configuration has.
func (s *Service) Unknown(name string) error {
	sources := s.Config.File
	if s.set != nil {
		sources += " and " + s.dir
	}
	return fmt.Errorf("%q is no policy of %s; %s", name, sources, oneOf(name, s.Names(), "it must be one of "))
}

// oneOf returns a suggestion for a name, and the names.
func oneOf(name string, names []string, words string) string {
	const maxNamed = 20
	text := words + strings.Join(names[:min(len(names), maxNamed)], ", ")
	if len(names) == 0 {
		text = "there is none"
	}
	if near := config.Nearest(name, names); near != "" {
		return "did you mean " + near + "? " + strings.ToUpper(text[:1]) + text[1:]
	}
	return text
}

// domainOf returns the domain that a key begins with, or "".
func (s *Service) domainOf(key string) string {
	domain, _, ok := parse(key)
	if ok && s.set != nil && s.set.Domain(domain) != nil {
		return domain
	}
	return ""
}

// described returns the count of a key under rules of one policy.
func (s *Service) described(rules []*descriptors.Rule, key string) (Match, error) {
	r := rules[0]
	domain := s.set.Domain(r.Labels.Domain)
	var tried [][]Entry
	parsed, entries, ok := parse(key)
	switch {
	case ok && parsed == r.Labels.Domain:
		tried = orders(entries)
	case ok: // of another domain
	default:
		if _, entries, ok := parse("x?" + key); ok { // without the domain
			tried = orders(entries)
		}
		if len(r.Keys) == 1 { // the value alone
			tried = append(tried, []Entry{{r.Keys[0], key}})
		}
	}
	for _, order := range tried {
		rule, right := domain.Match(nil, protos(order))
		if rule == nil || rule.Policy.Name != r.Policy.Name {
			continue
		}
		if string(right) != key {
			return Match{}, fmt.Errorf("no request is charged for %q under %s; did you mean %q?", key, r.Policy.Name, right)
		}
		return s.matchOf(rule, key), nil
	}
	var form []string
	for _, k := range r.Keys {
		form = append(form, k+"=VALUE")
	}
	return Match{}, fmt.Errorf("no request is charged for %q under %s; a key must be as %q", key, r.Policy.Name, r.Labels.Domain+"?"+strings.Join(form, "&"))
}

// parse returns the domain and the entries of a key of descriptors.
func parse(key string) (domain string, entries []Entry, ok bool) {
	domain, list, ok := strings.Cut(key, "?")
	if !ok {
		return "", nil, false
	}
	for part := range strings.SplitSeq(list, "&") {
		i := strings.IndexAny(part, "=~")
		if i < 0 {
			return "", nil, false
		}
		entries = append(entries, Entry{unescape(part[:i]), unescape(part[i+1:])})
	}
	return unescape(domain), entries, domain != ""
}

func unescape(text string) string {
	b := []byte(nil)
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' && i+2 < len(text) {
			hi, lo := strings.IndexByte(hexDigits, text[i+1]), strings.IndexByte(hexDigits, text[i+2])
			if hi >= 0 && lo >= 0 {
				c, i = byte(hi<<4|lo), i+2
			}
		}
		b = append(b, c)
	}
	return string(b)
}

const hexDigits = "0123456789ABCDEF"

// Contains reports whether the configuration has a policy of that name.
func (s *Service) Contains(name string) bool { return slices.Contains(s.Names(), name) }

// KeysWith returns the keys of descriptors with one entry, for each rule of one, with that value.
func (s *Service) KeysWith(value string) (list []string) {
	if s.set == nil {
		return nil
	}
	for _, r := range s.set.Rules() {
		if len(r.Keys) != 1 {
			continue
		}
		if found, key := s.set.Domain(r.Labels.Domain).Match(nil, protos([]Entry{{r.Keys[0], value}})); found == r {
			list = append(list, string(key))
		}
	}
	return list
}
