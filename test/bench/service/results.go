package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/test/internal/draw"
)

// results are all samples, by program and by the number of descriptors.
type results struct {
	Setup   string                      `json:"setup"`
	Cores   string                      `json:"cores"` // how they are shared
	Samples map[string]map[int][]sample `json:"samples"`
	Hung    map[string][]hungSample     `json:"hung"`
}

// hungSample is the result of a call while Redis hangs.
type hungSample struct {
	Deadline time.Duration `json:"deadline_ns"` // 0 if the call has no deadline
	Took     time.Duration `json:"took_ns"`
	Answer   string        `json:"answer"` // empty if the call got no answer
}

func newResults(s *settings) *results {
	cores := "service, Redis and load generator share all"
	if s.pins {
		cores = "service and Redis have one, and the load generator the rest"
	}
	return &results{
		Cores: cores,
		Setup: fmt.Sprintf("Measured on %s: %d cores, of which %s; %s. %d connections, each with one call at a time; %d clients; medians of %d passes of %v.",
			time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), cores, runtime.Version(), s.connections, s.clients, s.passes, s.sample),
		Samples: make(map[string]map[int][]sample), Hung: make(map[string][]hungSample),
	}
}

func (r *results) add(name string, descriptors int, s sample) {
	if r.Samples[name] == nil {
		r.Samples[name] = make(map[int][]sample)
	}
	r.Samples[name][descriptors] = append(r.Samples[name][descriptors], s)
}

// median returns the medians of a program's samples.
func (r *results) median(name string, descriptors int) sample {
	of := func(value func(sample) float64) float64 {
		var all []float64
		for _, s := range r.Samples[name][descriptors] {
			all = append(all, value(s))
		}
		if slices.Sort(all); len(all) == 0 {
			return 0
		}
		return all[len(all)/2]
	}
	return sample{
		of(func(s sample) float64 { return s.PerSecond }), of(func(s sample) float64 { return s.CPU }),
		of(func(s sample) float64 { return s.P50 }), of(func(s sample) float64 { return s.P99 }),
	}
}

var names = []string{ours, theirs, pipelined, floor}

// text returns the tables in Markdown.
func (r *results) text() string {
	var b strings.Builder
	b.WriteString(r.Setup + "\n\n| descriptors | | decisions a second | CPU µs a decision | p50 ms | p99 ms |\n|---:|---|---:|---:|---:|---:|\n")
	for _, n := range counts {
		for _, name := range names {
			if s := r.median(name, n); s.PerSecond > 0 {
				fmt.Fprintf(&b, "| %d | %s | %s | %.0f | %.2f | %.2f |\n", n, name, draw.Number(s.PerSecond), s.CPU, s.P50/1000, s.P99/1000)
			}
		}
		us, them := r.median(ours, n), r.median(theirs, n)
		fmt.Fprintf(&b, "| | %s ÷ %s | %.2f | %.2f | %.2f | %.2f |\n", ours, theirs, us.PerSecond/them.PerSecond, us.CPU/them.CPU, us.P50/them.P50, us.P99/them.P99)
	}
	b.WriteString("\nWhile Redis hangs, the slowest answer in all passes:\n\n| | deadline of the call | answer | after |\n|---|---|---|---:|\n")
	for _, name := range names[:3] {
		for _, deadline := range deadlines {
			fmt.Fprintln(&b, r.hungLine(name, deadline))
		}
	}
	return b.String()
}

func (r *results) hungLine(name string, deadline time.Duration) string {
	worst := hungSample{Took: -1}
	for _, h := range r.Hung[name] {
		if h.Deadline == deadline && (h.Took > worst.Took || h.Answer == "" && worst.Answer != "") {
			worst = h
		}
	}
	words := "none"
	if deadline > 0 {
		words = deadline.String()
	}
	answer, took := worst.Answer, fmt.Sprintf("%.1f ms", float64(worst.Took)/float64(time.Millisecond))
	if answer == "" {
		answer, took = "no answer", "given up after "+took
	}
	return fmt.Sprintf("| %s | %s | %s | %s |", name, words, answer, took)
}

// figure draws decisions a second and CPU.
func (r *results) figure() figure.Figure {
	f := figure.Figure{
		Title: "Envoy's rate limit service over gRPC", Subtitle: fmt.Sprintf("One redis-server; of the cores, %s.", r.Cores),
		Columns: 2, PanelHeight: 150,
	}
	for _, n := range counts {
		for _, metric := range []struct {
			title string
			of    func(sample) float64
		}{
			{"decisions a second", func(s sample) float64 { return s.PerSecond }},
			{"CPU µs a decision", func(s sample) float64 { return s.CPU }},
		} {
			panel := figure.Panel{Title: fmt.Sprintf("%d descriptors, %s", n, metric.title)}
			for _, name := range names {
				if v := metric.of(r.median(name, n)); v > 0 {
					panel.Bars = append(panel.Bars, figure.Bar{Name: name, Class: classes[name], Parts: []float64{v}})
				}
			}
			f.Panels = append(f.Panels, panel)
		}
	}
	return f
}

var classes = map[string]figure.Class{ours: figure.Ours, floor: figure.Ceiling}

const placeBegin, placeEnd = "<!-- begin service -->\n", "<!-- end service -->"

// publish writes the figure, the samples, and the tables in docs/reference/throttlerd.md.
func (r *results) publish(root string) error {
	samples, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/reference/throttlerd.md"))
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(page, []byte(placeBegin))
	_, after, ended := bytes.Cut(rest, []byte(placeEnd))
	if !ok || !ended {
		return fmt.Errorf("docs/reference/throttlerd.md has no place between %q and %q", placeBegin, placeEnd)
	}
	page = slices.Concat(before, []byte(placeBegin+"\n"+r.text()+"\n"+placeEnd), after)
	for name, content := range map[string][]byte{
		"docs/inside/performance/service.svg": draw.SVG(r.figure()), "docs/inside/performance/service.json": append(samples, '\n'), "docs/reference/throttlerd.md": page,
	} {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil { //nolint:gosec // for everybody to read
			return err
		}
	}
	return nil
}
