package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// checked is the result of checking a file.
type checked struct {
	File     string   `json:"file"`
	Kind     string   `json:"kind"`
	Right    bool     `json:"right"`
	Problems []string `json:"problems,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// kinds are the kinds of files, with their check functions.
var kinds = map[string]func(file string, text []byte, o *checkOptions) (warnings []string, err error){
	"config": checkConfig, "policies": checkPolicies, "ratelimit": checkRateLimit,
}

const kindMustBe = "config, policies or ratelimit"

type checkOptions struct {
	uses  words // policies that the program uses
	extra words // keys of the program at the top of its configuration

	merge      bool              // a domain may be in several files of descriptors
	ratelimits []*envoyfile.File // files without mistakes of their own
}

func check(c *command) subcommand {
	o := new(checkOptions)
	kind := c.flags.String("kind", "", "the `kind` of the files: config, policies in JSON, or ratelimit, of descriptors for Envoy; if not set, it is guessed")
	c.flags.Var(&o.uses, "uses", "`names` of the policies that the program uses; one that is misspelled in the file is then wrong")
	c.flags.Var(&o.extra, "own", "`keys` at the top of the configuration that are the program's, and not checked")
	c.flags.BoolVar(&o.merge, "merge", false, "a domain may be in several files of descriptors, as with MERGE_DOMAIN_CONFIG=true")
	return subcommand{"check [-kind KIND] [-uses NAMES] [-own KEYS] [-merge] FILE...", 1, -1, "a file at least", func(context.Context) error {
		if *kind != "" && kinds[*kind] == nil {
			return usage("-kind is %q; it must be %s", *kind, kindMustBe)
		}
		var list []checked
		for _, file := range c.args {
			list = append(list, checkFile(file, *kind, o))
		}
		checkTogether(list, o)
		wrong := 0
		for i := range list {
			if !list[i].Right {
				wrong++
			}
		}
		if err := printChecked(c, list); err != nil {
			return err
		}
		if wrong > 0 {
			return fmt.Errorf("%d of %d files are wrong", wrong, len(list))
		}
		return nil
	}}
}

func printChecked(c *command, list []checked) error {
	if c.json {
		return printJSON(c.out, list)
	}
	for _, single := range list {
		for _, p := range single.Problems {
			fmt.Fprintln(c.out, p)
		}
		for _, w := range single.Warnings {
			fmt.Fprintf(c.out, "%s: warning: %s\n", single.File, w)
		}
		if single.Right {
			fmt.Fprintf(c.out, "%s: right (%s)\n", single.File, single.Kind)
		}
	}
	return nil
}

func checkFile(file, kind string, o *checkOptions) checked {
	single := checked{File: file, Kind: kind}
	text, err := os.ReadFile(file)
	if errors.Is(err, syscall.EISDIR) {
		err = fmt.Errorf("it is a directory; name its files, such as %s", filepath.Join(file, "*.yaml"))
	}
	if err == nil {
		if single.Kind == "" {
			single.Kind = kindOf(text)
		}
		single.Warnings, err = kinds[single.Kind](file, text, o)
	}
	single.Right = err == nil
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, file) {
				line = file + ": " + line
			}
			single.Problems = append(single.Problems, line)
		}
	}
	return single
}

// checkTogether checks all files of descriptors as one configuration.
func checkTogether(list []checked, o *checkOptions) {
	envoyfile.Sort(o.ratelimits)
	if err := envoyfile.Together(o.ratelimits, o.merge); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			for i := range list {
				if strings.HasPrefix(line, list[i].File+": ") {
					list[i].Right, list[i].Problems = false, append(list[i].Problems, line)
					break
				}
			}
		}
		return
	}
	for _, warning := range envoyfile.Warnings(o.ratelimits) {
		for i := range list {
			if text, found := strings.CutPrefix(warning, list[i].File+": "); found {
				list[i].Warnings = append(list[i].Warnings, text)
				break
			}
		}
	}
}

// ofDescriptors matches a key at the top of a file of descriptors, but of no configuration.
var ofDescriptors = regexp.MustCompile(`(?m)^(\x{FEFF}?\s*\{\s*)?\x{FEFF}?["']?(domain|descriptors)["']?\s*:`)

// kindOf returns the kind that a file looks like.
func kindOf(text []byte) string {
	if ofDescriptors.Match(text) {
		return "ratelimit"
	}
	if bytes.HasPrefix(bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff"))), []byte("{")) && (bytes.Contains(text, []byte(`"policies"`)) || bytes.Contains(text, []byte(`"overrides"`))) {
		return "policies"
	}
	return "config"
}

func checkConfig(file string, text []byte, o *checkOptions) ([]string, error) {
	options := &config.Options{Program: anything(o.extra), Table: new(policies.Table)} // a program without a table has no use for policies_at and parents, and weirctl can't know that
	for _, name := range o.uses {
		// The limits stand in for a policy that the file may leave out.
		options.Policies = append(options.Policies, &quota.Policy{Name: name, Limits: []quota.Limit{{Quota: 1, Window: time.Second}}})
	}
	c, err := config.Parse(file, text, options)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return nil, err
	}
	return c.Warnings(), nil
}

// anything returns a struct for config.Options.Program that accepts the keys, and ignores
// their values.
func anything(keys []string) any {
	var fields []reflect.StructField
	for i, key := range keys {
		fields = append(fields, reflect.StructField{Name: fmt.Sprint("Key", i), Type: reflect.TypeFor[yaml.Node](), Tag: reflect.StructTag(fmt.Sprintf("yaml:%q", key))})
	}
	return reflect.New(reflect.StructOf(fields)).Interface()
}

func checkRateLimit(file string, text []byte, o *checkOptions) ([]string, error) {
	f, err := envoyfile.Parse(file, text, nil)
	if err == nil {
		o.ratelimits = append(o.ratelimits, f)
	}
	return nil, err // checkTogether warns
}

func checkPolicies(_ string, text []byte, options *checkOptions) (warnings []string, err error) {
	content, err := policies.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	if err := new(policies.Table).Source("file").Edit(func(e *policies.Edit) { e.Replace(content) }); err != nil {
		return nil, err
	}
	if len(content.Policies)+len(content.Overrides) == 0 {
		warnings = append(warnings, "the file has no policies and no overrides")
	}
	now := time.Now()
	var names []string
	for _, p := range content.Policies {
		names = append(names, p.Name)
		warnings = append(warnings, p.Warnings()...)
		if !p.HoldsAt(now.UnixMilli()) {
			warnings = append(warnings, fmt.Sprintf("the policy %q ended at %s", p.Name, p.Until.UTC().Format(time.RFC3339)))
		}
	}
	for _, o := range content.Overrides {
		if near := config.Nearest(o.Policy, names); near != "" && !slices.Contains(names, o.Policy) && !slices.Contains(options.uses, o.Policy) {
			warnings = append(warnings, fmt.Sprintf("an override is for %q, which is no policy of the file; did you mean %s?", o.Policy, near))
		}
		if !o.Until.IsZero() && o.Until.Before(now) {
			warnings = append(warnings, fmt.Sprintf("the override of policy %q for key %q ended at %s", o.Policy, o.Key, o.Until.UTC().Format(time.RFC3339)))
		}
		if err := operator.CheckTarget(nil, o.Policy, o.Key, true); err != nil {
			warnings = append(warnings, fmt.Sprintf("an override of policy %q: %v", o.Policy, err))
		}
	}
	return warnings, checkUses(content, names, options.uses)
}

// checkUses returns an error about each name in content that is misspelled: uses are the policies
// that the program uses, and names those of content. A policy of content that the program does not use
// may be a plan or a parent, so its name is wrong only if it is nearly a name that content lacks.
func checkUses(content policies.Content, names []string, uses words) error {
	if len(uses) == 0 {
		return nil
	}
	all := strings.Join(uses, ", ")
	var wrong []error
	for _, name := range names {
		near := config.Nearest(name, uses)
		if near == "" || slices.Contains(names, near) || slices.Contains(uses, name) {
			continue
		}
		if !slices.ContainsFunc(content.Policies, func(p *quota.Policy) bool { return p.Parent == name }) {
			wrong = append(wrong, fmt.Errorf("%q is no policy of the program; did you mean %s? It uses %s", name, near, all))
		}
	}
	reported := make(map[string]bool)
	for _, o := range content.Overrides {
		if slices.Contains(uses, o.Policy) || slices.Contains(names, o.Policy) || reported[o.Policy] {
			continue
		}
		reported[o.Policy] = true
		right := "the program uses " + all
		if near := config.Nearest(o.Policy, uses); near != "" {
			right = "did you mean " + near + "? The program uses " + all
		}
		wrong = append(wrong, fmt.Errorf("an override is for %q, which is no policy of the program or of the file; %s", o.Policy, right))
	}
	return errors.Join(wrong...)
}
