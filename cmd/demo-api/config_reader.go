package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// maxConfigBytes bounds a configuration file, at more than 100,000 policies.
const maxConfigBytes = 8 << 20

// reader reads a configuration file and collects all that is wrong with it.
type reader struct {
	name     string
	problems []problem
}

type problem struct {
	line int // 0 if it concerns the whole file
	text string
}

func (r *reader) problem(line int, format string, args ...any) {
	r.problems = append(r.problems, problem{line, fmt.Sprintf(format, args...)})
}

func (r *reader) failed() bool { return len(r.problems) > 0 }

// err returns the problems, one a line, in the order of the file, or nil.
func (r *reader) err() error {
	slices.SortStableFunc(r.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	var all []error
	for _, p := range r.problems {
		at := r.name
		if p.line > 0 {
			at = fmt.Sprintf("%s:%d", r.name, p.line)
		}
		all = append(all, fmt.Errorf("%s: %s", at, p.text))
	}
	return errors.Join(all...)
}

func (r *reader) readFile() []byte {
	file, err := os.Open(r.name)
	if err != nil {
		r.problem(0, "%v", withoutName(err))
		return nil
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	switch {
	case err != nil:
		r.problem(0, "%v", withoutName(err))
	case len(text) > maxConfigBytes:
		r.problem(0, "the file has more than %d bytes", maxConfigBytes)
	}
	return text
}

// withoutName returns the cause of an error about a file; problems name it too.
func withoutName(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// parse returns what is at the top of the file. It is missing if the file is
// empty, or if it is no YAML, or more than one document.
func (r *reader) parse(text []byte) value {
	top := value{r: r, line: 1}
	if line := notUTF8(text); line > 0 {
		r.problem(line, "the text is not UTF-8")
		return top
	}
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		r.problem(0, "%v", err)
		return top
	}
	var document, second yaml.Node
	switch err := loader.Load(&document); {
	case errors.Is(err, io.EOF):
		return top
	case err != nil:
		r.syntax(text, err)
		return top
	}
	switch err := loader.Load(&second); {
	case err == nil:
		r.problem(second.Line, "a second document begins here; one file is one configuration")
		return top
	case !errors.Is(err, io.EOF):
		r.syntax(text, err)
		return top
	}
	return r.at(document.Content[0], "", 1)
}

// notUTF8 returns the first line that is not UTF-8, or 0.
func notUTF8(text []byte) int {
	line := 1
	for part := range bytes.Lines(text) {
		if !utf8.Valid(part) {
			return line
		}
		line++
	}
	return 0
}

// syntax adds an error of the YAML parser about the text of the file.
func (r *reader) syntax(text []byte, err error) {
	var at *yaml.LoadError
	if !errors.As(err, &at) {
		r.problem(0, "%v", err)
		return
	}
	if indentedByTab(text, at.Mark.Line) {
		r.problem(at.Mark.Line, "the line begins with a tab; indent it by spaces, as YAML asks")
		return
	}
	what := at.Message
	if strings.Contains(what, "cannot start any token") {
		what += "; write the value in quotes"
	} else if at.ContextMsg != "" && at.ContextMark.Line > 0 {
		what += fmt.Sprintf(", %s that begins in line %d", at.ContextMsg, at.ContextMark.Line)
	}
	r.problem(at.Mark.Line, "%s", what)
}

// indentedByTab reports whether there is a tab in front of what that line of text has.
func indentedByTab(text []byte, line int) bool {
	for part := range bytes.Lines(text) {
		if line--; line == 0 {
			return bytes.ContainsRune(part[:len(part)-len(bytes.TrimLeft(part, " \t"))], '\t')
		}
	}
	return false
}
