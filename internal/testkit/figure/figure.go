// Package figure describes figures of the documentation. Module test draws them: the
// library's module has no library that draws.
package figure

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// A Figure is a grid of panels under a title.
type Figure struct {
	Title, Subtitle string
	Columns         int // of the grid; if zero, one
	PanelHeight     int // in pixels
	Panels          []Panel
}

// A Panel shows lines, or bars.
type Panel struct {
	Title, Note string // Note is a second line, smaller
	XLabel      string
	LogX, LogY  bool
	Top         float64 // the end of the y axis; if zero, the highest value
	Series      []Series
	Spans       []Span // times of events, in units of x

	// Bars are drawn from left to right, the first on top. A panel with bars has no lines.
	Bars []Bar
}

// A Series is one line.
type Series struct {
	Name  string
	Class Class
	Color int       // of a Plain one: an index of the palette
	X, Y  []float64 // a point whose Y is NaN is left out
	Dots  bool      // marks the points
	Loose bool      // the points are marked, and not connected
}

// A Span is the time of an event.
type Span struct {
	Name     string
	From, To float64
	Color    int // an index of the palette
}

// A Bar is one thing. Its parts follow each other.
type Bar struct {
	Name  string
	Class Class
	Parts []float64
	Label string // at its end
}

// Class is the style of a series or a bar.
type Class int

// Classes.
const (
	Plain   Class = iota // one of many
	Ours                 // the figure's subject
	Ceiling              // a bound, not a contender
	Fit                  // a law, dashed
)

// Write writes f as dir/name.json, from which `go -C test run ./pictures/figures` draws a
// picture. It does nothing if dir is empty.
func (f Figure) Write(dir, name string) error {
	if dir == "" {
		return nil
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644)
}
