package result

import (
	"math"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/weir-go/weir/test/bench/peers"
)

func TestMedianAndSpread(t *testing.T) {
	s := Set{Results: []Result{
		{Row: "r", Peer: "weir", Role: peers.Ours, Values: map[string][]float64{"m": {9, 7, 8}}},
		{Row: "r", Peer: "a", Values: map[string][]float64{"m": {1, 4, 2, 3}}},
		{Row: "r", Peer: "b", Values: map[string][]float64{"m": {5}}},
		{Row: "r", Peer: "failed", Err: "no answer"},
		{Row: "r", Peer: "floor", Role: peers.Ceiling, Values: map[string][]float64{"m": {99}}},
	}}
	if got := s.Get("r", "a"); got.Median("m") != 2.5 || got.Spread("m") != 3/2.5 {
		t.Errorf("median %v, spread %v; want 2.5 and 1.2", got.Median("m"), got.Spread("m"))
	}
	ours, none := s.Ours("r"), s.Get("r", "failed")
	if ours.Peer != "weir" || !math.IsNaN(none.Median("m")) {
		t.Errorf("ours is %q, a failed median %v; want weir and NaN", ours.Peer, none.Median("m"))
	}
}

func TestWriteThenRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results.json")
	want := &Set{Commit: "abc", Seed: math.MaxUint64, Results: []Result{
		{Row: "r", Peer: "a", X: 4, Values: map[string][]float64{"m": {1, 2}}},
		{Row: "r", Peer: "b", Role: peers.Ours, Text: `with "quotes"`},
	}}
	if err := want.Write(name); err != nil {
		t.Fatal(err)
	}
	got, err := Read(name)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, error %v; wrote %+v", got, err, want)
	}
}

func TestRound(t *testing.T) {
	for v, want := range map[float64]float64{123456: 123500, 0.00123456: 0.001235, -2.5: -2.5, 0: 0} {
		if got := Round(v); math.Abs(got-want) > 1e-12 {
			t.Errorf("%v is rounded to %v, want %v", v, got, want)
		}
	}
}

func TestFitLawFindsTheLaw(t *testing.T) {
	for _, law := range []Law{{Linear: true, A: 2, B: 0.5}, {A: 3, B: 0.7}, {A: 4, B: 0}} {
		var x, y []float64
		for v := 1.0; v < 1e5; v *= 10 {
			x, y = append(x, v), append(y, law.Value(v))
		}
		got := FitLaw(x, y)
		if got.Error > 1e-6 || math.Abs(got.Value(500)/law.Value(500)-1) > 1e-6 {
			t.Errorf("%v was fitted by %v, off by %v", law, got, got.Error)
		}
	}
}
