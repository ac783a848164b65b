package main

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/quota"
)

// value is a place in a configuration file, and what the file has there. Its
// methods return it as what it must be; if it is something else they add a
// problem to the reader and return a zero value.
type value struct {
	r    *reader
	path string     // such as policies.core.limits[0].quota
	line int        // of the value, or, if it is missing, of what it is missing from
	node *yaml.Node // nil if it is missing
}

// at returns the value of a node at path. Null is the same as missing. What the
// configuration has no use for, and YAML does, is refused here: an alias can
// make a small file a huge one, a tag changes what a value is.
func (r *reader) at(node *yaml.Node, path string, line int) value {
	v := value{r: r, path: path, line: line}
	if node == nil {
		return v
	}
	v.line = node.Line
	switch {
	case node.Kind == yaml.AliasNode:
		v.problem("%s is the alias *%s; write the value itself", v.name(), node.Value)
	case node.Style&yaml.TaggedStyle != 0:
		v.problem("%s has the tag %s; leave the tag out", v.name(), node.Tag)
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
	default:
		v.node = node
	}
	return v
}

func (v value) missing() bool { return v.node == nil }

// name names the place, for a person.
func (v value) name() string {
	if v.path == "" {
		return "the file"
	}
	return v.path
}

func (v value) problem(format string, args ...any) { v.r.problem(v.line, format, args...) }

// wrong adds that the value is not what it must be.
func (v value) wrong(mustBe string) {
	switch {
	case v.missing() || v.node.Kind == yaml.ScalarNode && v.node.Value == "":
		v.problem("%s is missing; it must be %s", v.name(), mustBe)
	case v.node.Kind == yaml.ScalarNode:
		v.problem("%s is %s; it must be %s", v.name(), quoted(v.node.Value), mustBe)
	case v.node.Kind == yaml.SequenceNode:
		v.problem("%s is a list; it must be %s", v.name(), mustBe)
	default:
		v.problem("%s is a mapping; it must be %s", v.name(), mustBe)
	}
}

// entry is a key of a mapping and its value.
type entry struct {
	key   string
	value value
}

// entries returns the entries of a mapping with keys of the user's choice, in
// the order of the file. A missing mapping has none.
func (v value) entries(mustBe string) []entry {
	if v.missing() {
		return nil
	}
	if v.node.Kind != yaml.MappingNode {
		v.wrong(mustBe)
		return nil
	}
	var all []entry
	lines := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.r.at(v.node.Content[i], v.name()+": a key", v.line)
		name, ok := key.scalar("a word")
		if !ok {
			continue
		}
		if first, again := lines[name]; again {
			key.problem("%s is set twice, first in line %d", v.child(name), first)
			continue
		}
		lines[name] = key.line
		all = append(all, entry{name, v.r.at(v.node.Content[i+1], v.child(name), key.line)})
	}
	return all
}

// fields returns the values of a mapping with these keys; the values that the file
// leaves out are missing. Any other key is a problem.
func (v value) fields(names ...string) map[string]value {
	all := map[string]value{}
	for _, name := range names {
		all[name] = value{r: v.r, path: v.child(name), line: v.line}
	}
	keys := strings.Join(names, ", ")
	for _, e := range v.entries("a mapping with " + keys) {
		if !slices.Contains(names, e.key) {
			v.r.problem(e.value.line, "unknown key %s; %s", spelled(e.key), didYouMean(e.key, names, "the keys here are "+keys))
			continue
		}
		all[e.key] = e.value
	}
	return all
}

// items returns the values of a list. A missing list has none.
func (v value) items(mustBe string) []value {
	if v.missing() {
		return nil
	}
	if v.node.Kind != yaml.SequenceNode {
		v.wrong(mustBe)
		return nil
	}
	var all []value
	for i, node := range v.node.Content {
		all = append(all, v.r.at(node, fmt.Sprintf("%s[%d]", v.path, i), v.line))
	}
	return all
}

var plainKey = regexp.MustCompile(`^[\w-]+$`)

// child returns the path of the value at a key.
func (v value) child(key string) string {
	if v.path == "" {
		return spelled(key)
	}
	return v.path + "." + spelled(key)
}

// spelled returns a key as a problem shows it.
func spelled(key string) string {
	if plainKey.MatchString(key) && len(key) <= mostShown {
		return key
	}
	return quoted(key)
}

const mostShown = 80 // bytes of a key or value

func quoted(text string) string {
	if len(text) > mostShown {
		return strconv.Quote(text[:mostShown]) + "…"
	}
	return strconv.Quote(text)
}

// scalar returns the text of a scalar as the file spells it: YAML would make
// 4 of 4.5, and 8 of 010.
func (v value) scalar(mustBe string) (text string, ok bool) {
	if v.missing() || v.node.Kind != yaml.ScalarNode || v.node.Value == "" {
		v.wrong(mustBe)
		return "", false
	}
	return v.node.Value, true
}

// peek is scalar where something else may be right too: it adds no problem.
func (v value) peek() (text string, ok bool) {
	if v.missing() || v.node.Kind != yaml.ScalarNode {
		return "", false
	}
	return v.node.Value, true
}

// file returns what is in a file, whose name is relative to the configuration's directory.
func (v value) file(mustBe string) (content []byte, ok bool) {
	name, ok := v.scalar(mustBe)
	if !ok {
		return nil, false
	}
	f := &reader{name: v.fileName(name)}
	content = f.readFile()
	if f.failed() {
		v.problem("%s is %s: %s; it must be %s", v.name(), quoted(v.node.Value), f.problems[0].text, mustBe)
		return nil, false
	}
	return content, true
}

// fileName returns the name of a file, which is relative to the configuration's directory.
func (v value) fileName(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(v.r.name), name)
}

func (v value) oneOf(choices ...string) string {
	last := len(choices) - 1
	mustBe := strings.Join(choices[:last], ", ") + " or " + choices[last]
	text, ok := v.scalar(mustBe)
	if ok && !slices.Contains(choices, text) {
		v.wrong(mustBe)
		return ""
	}
	return text
}

var wholeNumber = regexp.MustCompile(`^[1-9][0-9]*$`)

func (v value) whole() int64 {
	const mustBe = "a whole number, 1 or more, in decimal digits, such as 60"
	text, ok := v.scalar(mustBe)
	if !ok {
		return 0
	}
	if !wholeNumber.MatchString(text) {
		v.wrong(mustBe)
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > quota.MaxQuota {
		v.wrong(fmt.Sprintf("at most %d (2^53)", int64(quota.MaxQuota)))
		return 0
	}
	return n
}

func (v value) duration() time.Duration {
	const mustBe = "a duration above zero, with its unit, such as 50ms, 60s or 1h"
	text, ok := v.scalar(mustBe)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		v.wrong(mustBe)
		return 0
	}
	return d
}

// window is duration with days.
func (v value) window() time.Duration {
	const mustBe = "a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d"
	text, ok := v.scalar(mustBe)
	if !ok {
		return 0
	}
	d, err := quota.ParseWindow(text)
	if err != nil {
		v.wrong(mustBe)
	}
	return d
}

// address returns a host and a port. Where the demo listens the host may be
// left out, which means all interfaces.
func (v value) address(host hostRule) string {
	mustBe := "a host and a port, such as 127.0.0.1:8080"
	text, ok := v.scalar(mustBe)
	if ok && !validAddress(text, host) {
		v.wrong(mustBe)
	}
	return text
}

type hostRule bool

const (
	hostNeeded   hostRule = true
	hostOptional hostRule = false
)

var (
	hostName   = regexp.MustCompile(`^[\w.:%-]*$`)
	portNumber = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
)

func validAddress(text string, rule hostRule) bool {
	host, port, err := net.SplitHostPort(text)
	if err != nil || !hostName.MatchString(host) || !portNumber.MatchString(port) || rule == hostNeeded && host == "" {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// isLoopback reports whether an address can be reached from this machine alone.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
