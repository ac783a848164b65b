package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestSVGIsXMLWithoutNonsense(t *testing.T) {
	f := Figure{Title: "a < b & c", Columns: 2, PanelHeight: 200, Panels: []Panel{
		Lines{Title: "lines", XLabel: "x", Series: []Series{
			{Name: "gap", X: []float64{1, 2, 4}, Y: []float64{1, math.NaN(), 3}},
			{Name: "near", Class: Ours, X: []float64{1, 4}, Y: []float64{1, 3.01}},
			{Name: "nothing", X: []float64{1}, Y: []float64{math.NaN()}},
		}},
		Lines{Title: "logarithmic", LogY: true, Series: []Series{{Name: "flat", X: []float64{1, 10}, Y: []float64{100, 100}}}},
		Lines{Title: "no points"},
		Bars{Title: "bars", Bars: []Bar{{Name: "one", Parts: []float64{1, 2}}, {Name: "none", Class: Ceiling, Parts: []float64{0}}}},
		Bars{Title: "no bars"},
		Timeline{Title: "timeline", Seconds: 9, Named: true, Spans: []Span{{Name: "a < b", From: 1, To: 20}}, Series: []Series{
			{Name: "gap", X: []float64{0, 4, 9}, Y: []float64{1, math.NaN(), 3}},
		}},
		Timeline{Title: "no time", LogY: true},
	}}
	svg := f.SVG()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, nonsense := range []string{"NaN", "Inf"} {
		if strings.Contains(string(svg), nonsense) {
			t.Errorf("the figure has a %s", nonsense)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.054: "0.05", 3: "3", 3.14159: "3.14", 10.96: "11", 99.96: "100", 123.4: "123", 999.7: "1,000",
		9994: "9,994", 9996: "10 k", 15_140: "15.1 k", 999_600: "1 M", 2_345_678: "2.35 M", math.NaN(): "–",
	} {
		if got := Number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}
