package config

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/open-feature/go-sdk/openfeature"
)

// percentage is the part of the clients that a backend serves.
type percentage float64

var percentageText = regexp.MustCompile(`^\d{1,3}(\.\d{1,6})?$`)

func (p *percentage) UnmarshalText(text []byte) error {
	n, err := strconv.ParseFloat(string(text), 64)
	if *p = percentage(n); err != nil || n > 100 || !percentageText.Match(text) {
		return errors.New("it must be a percentage from 0 to 100, such as 5 or 0.5")
	}
	return nil
}

// percentages are the percentages of clients that backends serve. The key backend of the
// configuration names the one that serves the others.
type percentages struct {
	text      string   // of the file
	names     []string // of the backends, in an order that does not depend on which one is the key's
	byBackend map[string]percentage
}

// readPercentages returns the content of the file of flags.
func (c *Config) readPercentages() (*percentages, error) {
	name, names := c.keys.Flags.name, slices.Sorted(slices.Values(c.names()))
	text, err := readFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d, byBackend := newDocument(name), make(map[string]percentage)
	if d.parse(text, "the file is empty; it must have a percentage for a backend, such as "+c.names()[1]+": 5") {
		d.decode(&byBackend)
	}
	var sum percentage
	for backend, p := range byBackend {
		if sum += p; !slices.Contains(names, backend) {
			d.problem(path{backend}, "%s is no backend of the configuration; it has %s", spelled(backend), strings.Join(names, ", "))
		}
	}
	switch {
	case sum > 100:
		d.problem(nil, "the percentages add up to %v; they must add up to 100, or less", sum)
	case sum < 100 && d.contains(path{c.Backend}) && len(d.problems) == 0:
		d.problem(path{c.Backend}, "%s serves all others, and the percentages add up to %v; leave it out, or make them add up to 100", c.Backend, sum)
	}
	return &percentages{string(text), names, byBackend}, d.err()
}

// flagsEvery is the time between two reads of the file of flags. It is polled, because watchers
// lose files that are replaced.
const flagsEvery = 200 * time.Millisecond

// flags is an OpenFeature provider of the percentages in a file. While the file is missing or
// wrong, its last good state applies.
type flags struct {
	openfeature.NoopProvider // for flags that are not strings
	config                   *Config
	events                   chan openfeature.Event
	last                     atomic.Pointer[percentages] // nil before a good state
	problem                  string                      // of the last read
	reported                 bool                        // the problem was logged
}

// newFlags reads the file of flags. If it is wrong, the provider has no values until it is right.
func newFlags(c *Config) *flags {
	f := &flags{config: c, events: make(chan openfeature.Event, 1)}
	percentages, err := c.readPercentages()
	if err != nil {
		f.problem, f.reported = err.Error(), true
		c.options.Log.Warn("the flags' file is wrong; until it is right, one backend serves all clients", "backend", c.Backend, "error", err)
		return f
	}
	f.last.Store(percentages)
	return f
}

// refresh reads the file again. It logs a problem that it sees twice in a row: a file that is
// being written is wrong for a moment.
func (f *flags) refresh() {
	percentages, err := f.config.readPercentages()
	switch before := f.last.Load(); {
	case err == nil && before != nil && percentages.text == before.text:
		f.problem = ""
	case err == nil:
		f.problem = ""
		f.last.Store(percentages)
		f.config.options.Log.Info("read the flags", "file", f.config.keys.Flags.name)
		select {
		case f.events <- openfeature.Event{ProviderName: "weir-file", EventType: openfeature.ProviderConfigChange}:
		default: // another is on its way
		}
	case f.problem != err.Error():
		f.problem, f.reported = err.Error(), false
	case !f.reported:
		f.reported = true
		f.config.options.Log.Warn("the flags' file is wrong; its last good state stays in use", "error", err)
	}
}

// EventChannel implements openfeature.EventHandler.
func (f *flags) EventChannel() <-chan openfeature.Event { return f.events }

// StringEvaluation implements openfeature.FeatureProvider. A client's place is a hash of its
// targeting key, so that all processes agree, and a larger percentage has the same clients.
func (f *flags) StringEvaluation(_ context.Context, _, unset string, flat openfeature.FlattenedContext) openfeature.StringResolutionDetail {
	percentages := f.last.Load()
	if percentages == nil {
		err := openfeature.NewProviderNotReadyResolutionError(f.config.keys.Flags.name + " has had no percentages yet")
		return openfeature.StringResolutionDetail{Value: unset, ProviderResolutionDetail: openfeature.ProviderResolutionDetail{ResolutionError: err, Reason: openfeature.ErrorReason}}
	}
	key, _ := flat[openfeature.TargetingKey].(string)
	hash := sha256.Sum256([]byte(key))
	place := percentage(binary.BigEndian.Uint64(hash[:])>>11) / (1 << 53) * 100
	value := f.config.Backend
	for _, name := range percentages.names {
		if place < percentages.byBackend[name] {
			value = name
			break
		}
		place -= percentages.byBackend[name]
	}
	return openfeature.StringResolutionDetail{Value: value, ProviderResolutionDetail: openfeature.ProviderResolutionDetail{Reason: openfeature.SplitReason}}
}
