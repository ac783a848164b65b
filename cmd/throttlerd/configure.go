package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/weir-go/weir/cmd/internal/cmdline"
	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/cmd/throttlerd/internal/files"
	"github.com/weir-go/weir/cmd/throttlerd/internal/forwardauth"
	"github.com/weir-go/weir/cmd/throttlerd/internal/settings"
	"github.com/weir-go/weir/cmd/throttlerd/internal/xds"
	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/config/envoyfile"
	"github.com/weir-go/weir/throttler/policies"
)

// begin puts the first configuration in force, before the service is served. Later ones of a
// management server are put in force until ctx is done.
func (sv *service) begin(ctx context.Context) {
	if sv.xds != nil {
		sv.xds.Begin(ctx)
		return
	}
	sv.files = watcher(sv.settings)
	sv.files.Changed = func(texts map[string][]byte, err error) {
		if sv.forward != nil && sv.rls.Set() == nil && errors.Is(err, fs.ErrNotExist) {
			sv.log.Info("there are no descriptors: forward auth alone is served", "dir", sv.files.Dir)
			return
		}
		var list []*envoyfile.File
		if err == nil {
			err = checkShares(sv.stack.Config, sv.forward != nil && len(texts) == 0)
		}
		if err == nil {
			list, err = descriptors.Parse(sv.settings.AppDirectory, texts, sv.stack.Config.Supports)
		}
		_ = sv.apply(list, err) // apply has logged the error
	}
	sv.files.Begin(ctx)
}

func watcher(s *settings.Settings) *files.Watcher {
	return &files.Watcher{Dir: filepath.Join(s.Root, s.Subdirectory, s.AppDirectory), IgnoreDotFiles: s.IgnoreDotFiles}
}

// isAlone reports whether forward auth is served alone: its configuration is there, and no
// descriptors are.
func isAlone(s *settings.Settings, keys *forwardauth.Keys) bool {
	if keys == nil || s.ConfigType != "FILE" {
		return false
	}
	texts, _ := watcher(s).Read()
	return len(texts) == 0
}

// checkShares returns an error if shares are to count for descriptors: shares know only the
// policies of their file. alone says that forward auth is served alone.
func checkShares(c *config.Config, alone bool) error {
	if c.Backend != "shares" || alone {
		return nil
	}
	return fmt.Errorf("%s: backend is shares, which counts the policies of this file alone, and no descriptors; it must be a store, such as redis, or there must be forward_auth and no descriptors", c.File)
}

// apply puts a configuration in force. If it is wrong, or err is not nil, the last good one
// stays in force.
func (sv *service) apply(list []*envoyfile.File, err error) error {
	before := sv.rls.Set()
	var set *descriptors.Set
	if err == nil {
		set, err = descriptors.New(list, sv.settings.MergeDomainConfig, sv.settings.Compatible)
	}
	if err == nil {
		err = sv.setLevels(set)
	}
	if err != nil {
		sv.rls.Wrong()
		stays := "the last version without mistakes stays in force"
		if before == nil {
			stays = "every call fails until there is one"
		}
		sv.log.Error("a configuration is not in force; "+stays, "error", err)
		return err
	}
	sv.rls.Load(set)
	sv.tellHealth()
	sv.log.Info("a configuration is in force", "rules", len(set.Rules()))
	for _, warning := range envoyfile.Warnings(list) {
		sv.log.Warn(warning)
	}
	if set.Empty() {
		sv.log.Warn("the configuration has no domain: "+unlimited(sv.forward), "dir", watcher(sv.settings).Dir)
	}
	return nil
}

// unlimited says what is allowed without descriptors. keys is nil without forward auth.
func unlimited(keys *forwardauth.Keys) string {
	if keys == nil {
		return "every request is allowed"
	}
	return "every call of Envoy is allowed, and forward_auth alone limits requests"
}

// setLevels sets the levels of set's policies. A policy that is new to the process begins at its
// level; a policy that changes its level keeps its counts.
func (sv *service) setLevels(set *descriptors.Set) error {
	for _, r := range set.Rules() {
		if !r.Counts() {
			continue
		}
		name := r.Policy.Name
		level, found := sv.levels[name]
		if level != r.Level {
			change := sv.stack.Levels.Begin
			// A policy of WEIR_CONFIG, or its dry run, may have that name and a level.
			if found || sv.stack.Config.Policies[strings.TrimSuffix(name, ".dry-run")] != nil {
				change = sv.stack.Levels.Set
			}
			if err := change(r.Policy, r.Level); err != nil {
				return err
			}
		}
		sv.levels[name] = r.Level
	}
	return nil
}

// warningsOf returns the warnings of the file of WEIR_CONFIG.
func warningsOf(c *config.Config) []string {
	list := c.Warnings()
	if len(c.DryRuns) > 0 {
		list = append(list, "dry_runs has no effect: throttlerd tries no policies; a descriptor in shadow_mode is one to try")
	}
	return list
}

// checkAll checks all configuration that the environment names.
func checkAll(s *settings.Settings, log *slog.Logger, stdout io.Writer) error {
	program := new(forwardauth.Program)
	supports := envoyfile.Supports(nil)
	c, err := s.Config(&config.Options{Log: log, Program: program, Levels: true, Table: new(policies.Table), CountsHavePolicies: true})
	if err == nil {
		supports = c.Supports
		for _, warning := range warningsOf(c) {
			fmt.Fprintln(stdout, "warning:", warning)
		}
		err = errors.Join(c.Check(), checkForwardAuth(c, program.ForwardAuth), checkShares(c, isAlone(s, program.ForwardAuth)))
	}
	wrong := []error{err, checkOperators(s.Operators), checkCerts(s.GRPCCerts()), checkCerts(s.HTTPCerts())}
	if s.ConfigType != "FILE" {
		client, err := xds.NewClient(s.XDS, log, nil) // it connects when it is used
		if err == nil {
			err = client.Close()
		}
		wrong = append(wrong, err)
	} else {
		var list []*envoyfile.File
		var set *descriptors.Set
		texts, err := watcher(s).Read()
		if err == nil {
			list, err = descriptors.Parse(s.AppDirectory, texts, supports)
		}
		if err == nil {
			set, err = descriptors.New(list, s.MergeDomainConfig, s.Compatible)
		}
		if c != nil && program.ForwardAuth != nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
			if warning := unusedPolicies(c, program.ForwardAuth, set); warning != "" {
				fmt.Fprintln(stdout, "warning:", warning)
			}
		}
		if err == nil {
			for _, warning := range envoyfile.Warnings(list) {
				fmt.Fprintln(stdout, "warning:", warning)
			}
			if len(list) == 0 {
				fmt.Fprintf(stdout, "warning: %s has no file: %s\n", watcher(s).Dir, unlimited(program.ForwardAuth))
			}
		}
		if errors.Is(err, fs.ErrNotExist) && program.ForwardAuth != nil {
			err = nil // forward auth alone is a service, too
		}
		wrong = append(wrong, err)
	}
	if err := errors.Join(wrong...); err != nil {
		return cmdline.Usage(fmt.Errorf("the configuration is wrong\n%w", err))
	}
	fmt.Fprintln(stdout, "the configuration is right")
	return nil
}
