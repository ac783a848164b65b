package main

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// reader collects what is wrong with a configuration file, each problem with
// the line that it stands in.
type reader struct {
	name     string
	tree     *ast.File
	problems []error
}

// newReader decodes text. What YAML itself, or a key that nothing knows, makes
// impossible is the reader's first problem.
func newReader(name string, text []byte) (*reader, configFile) {
	r := &reader{name: name}
	file, err := r.decode(text)
	var at yaml.Error
	switch {
	case errors.As(err, &at):
		r.problemIn(at.GetToken().Position.Line, r.describe(at))
	case err != nil:
		r.problems = append(r.problems, fmt.Errorf("%s: %w", name, err))
	case len(r.tree.Docs) > 1:
		r.problemIn(r.tree.Docs[1].GetToken().Position.Line, "a second document begins here; one file is one configuration")
	}
	return r, file
}

func (r *reader) decode(text []byte) (file configFile, err error) {
	defer func() { // go-yaml 1.19 panics on a tag before a scalar, and on more of that kind
		if p := recover(); p != nil {
			err = fmt.Errorf("this YAML cannot be read (%v)", p)
		}
	}()
	if r.tree, err = parser.ParseBytes(text, 0); err != nil {
		return file, err
	}
	return file, yaml.UnmarshalWithOptions(text, &file, yaml.Strict())
}

func (r *reader) describe(err yaml.Error) string {
	var unknown *yaml.UnknownFieldError
	if !errors.As(err, &unknown) {
		return err.GetMessage()
	}
	find := &keyFinder{line: err.GetToken().Position.Line, column: err.GetToken().Position.Column}
	for _, doc := range r.tree.Docs {
		ast.Walk(find, doc)
	}
	return fmt.Sprintf("unknown key %s; the keys here are %s", err.GetToken().Value, strings.Join(keysAt(find.path), ", "))
}

// keyFinder finds the path of the node at a position.
type keyFinder struct {
	line, column int
	path         string
}

func (f *keyFinder) Visit(n ast.Node) ast.Visitor {
	if p := n.GetToken().Position; p.Line == f.line && p.Column == f.column {
		f.path = n.GetPath()
	}
	return f
}

// keysAt returns the keys that may stand where the one at path does.
func keysAt(path string) []string {
	var keys []string
	for field := range structAt(path).Fields() {
		keys = append(keys, field.Tag.Get("yaml"))
	}
	return keys
}

func structAt(path string) reflect.Type {
	switch {
	case (strings.HasPrefix(path, "$.policies.") || strings.HasPrefix(path, "$.dry_runs.")) && strings.Contains(path, ".limits["):
		return reflect.TypeFor[limitFile]()
	case strings.HasPrefix(path, "$.policies."), strings.HasPrefix(path, "$.dry_runs."):
		return reflect.TypeFor[policyFile]()
	case strings.HasPrefix(path, "$.memcached.servers["):
		return reflect.TypeFor[serverFile]()
	case strings.HasPrefix(path, "$.memcached."):
		return reflect.TypeFor[memcachedFile]()
	case strings.HasPrefix(path, "$.redis.shards["), strings.HasPrefix(path, "$.redis.resharded["):
		return reflect.TypeFor[shardFile]()
	case strings.HasPrefix(path, "$.redis."):
		return reflect.TypeFor[redisFile]()
	}
	return reflect.TypeFor[configFile]()
}

// wrong notes that the value at a path, given as keys and indexes, is not what
// it must be.
func (r *reader) wrong(mustBe, value string, at ...any) {
	what := strings.TrimPrefix(pathOf(at).String(), "$.")
	if value == "" {
		r.problem(fmt.Sprintf("%s is missing; it must be %s", what, mustBe), at...)
		return
	}
	r.problem(fmt.Sprintf("%s is %q; it must be %s", what, value, mustBe), at...)
}

// problem notes a problem at a path, or where its nearest parent stands.
func (r *reader) problem(text string, at ...any) {
	for ; len(at) > 0; at = at[:len(at)-1] {
		if node, err := pathOf(at).FilterFile(r.tree); err == nil {
			r.problemIn(node.GetToken().Position.Line, text)
			return
		}
	}
	r.problems = append(r.problems, fmt.Errorf("%s: %s", r.name, text))
}

func (r *reader) problemIn(line int, text string) {
	r.problems = append(r.problems, fmt.Errorf("%s:%d: %s", r.name, line, text))
}

func (r *reader) failed() bool { return len(r.problems) > 0 }

func (r *reader) err() error { return errors.Join(r.problems...) }

func pathOf(at []any) *yaml.Path {
	b := new(yaml.PathBuilder).Root()
	for _, step := range at {
		switch step := step.(type) {
		case string:
			b = b.Child(step)
		case int:
			b = b.Index(uint(step))
		}
	}
	return b.Build()
}
