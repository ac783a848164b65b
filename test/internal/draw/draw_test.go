package draw

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/testkit/figure"
)

func TestSVGIsXMLWithoutNonsense(t *testing.T) {
	f := figure.Figure{Title: "a < b & c", Columns: 2, PanelHeight: 200, Panels: []figure.Panel{
		{Title: "lines", Note: "note", XLabel: "x", Series: []figure.Series{
			{Name: "gap", Color: 20, X: []float64{1, 2, 4}, Y: []float64{1, math.NaN(), 3}, Dots: true},
			{Name: "nothing", X: []float64{1}, Y: []float64{math.NaN()}},
		}, Spans: []figure.Span{{Name: "span < b", From: 1, To: 2}}},
		{Title: "logarithmic", LogX: true, LogY: true, Series: []figure.Series{{Name: "flat", Class: figure.Fit, X: []float64{1, 10}, Y: []float64{100, 100}}}},
		{Title: "bars", Bars: []figure.Bar{{Name: "one", Parts: []float64{1, 2}}, {Name: "none", Class: figure.Ceiling, Parts: []float64{0}, Label: "zero"}}},
		{Title: "no points"},
	}}
	svg := SVG(f)
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, nonsense := range []string{"NaN", "Inf"} {
		if strings.Contains(string(svg), nonsense) {
			t.Errorf("the figure has a %s", nonsense)
		}
	}
	if !bytes.Equal(svg, SVG(f)) {
		t.Error("a second drawing differs")
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0543: "0.0543", 3: "3", 3.14159: "3.14", 99.96: "100", 123.4: "123", 999.7: "1000",
		9994: "9994", 9996: "10 k", 15_140: "15.1 k", 999_600: "1 M", 2_345_678: "2.35 M", math.NaN(): "–",
	} {
		if got := Number(v); got != want {
			t.Errorf("%v is %q, want %q", v, got, want)
		}
	}
}
