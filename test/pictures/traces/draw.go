package main

import (
	"fmt"

	"github.com/weir-go/weir/internal/testkit/figure"
	"github.com/weir-go/weir/test/internal/draw"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// For the algorithms that are drawn.
//
//exhaustive:ignore
var captions = map[quota.Algorithm]string{
	throttler.FixedWindow:   "counts in windows from the first charge: both bursts pass at the edge, 16 in 2.5 s",
	throttler.SlidingWindow: "weighs the last window's count: the second burst is refused, refusals ease gradually",
	throttler.SlidingLog:    "remembers every charge: never more than 10 in any 10 s",
	throttler.TokenBucket:   "refills one a second: a full burst, then the steady rate",
	throttler.LeakyBucket:   "a queue that moves one a second: what is admitted starts when its turn has come",
}

// overview returns the picture of all algorithms.
func overview() []byte {
	f := figure.Figure{
		Title:       fmt.Sprintf("The same %d requests, 10 allowed per 10 s, through each algorithm", len(arrivals())),
		Subtitle:    "Units used, over 60 s. Below: requests, at the time when they may start.",
		PanelHeight: 175,
	}
	for _, a := range algorithms {
		f.Panels = append(f.Panels, panel(a))
	}
	return draw.SVG(f)
}

func panel(a quota.Algorithm) figure.Panel {
	outcomes, curve, resets := play(a)
	used := figure.Series{Name: "used"}
	for i, s := range curve {
		if i > 0 && curve[i-1].used != s.used { // a step
			used.X, used.Y = append(used.X, s.instant.Seconds()), append(used.Y, float64(curve[i-1].used))
		} else if i > 0 && i < len(curve)-1 && curve[i+1].used == s.used {
			continue
		}
		used.X, used.Y = append(used.X, s.instant.Seconds()), append(used.Y, float64(s.used))
	}
	limit := figure.Series{Name: "quota", Class: figure.Ceiling, X: []float64{0, duration.Seconds()}, Y: []float64{perWindow, perWindow}}
	served := figure.Series{Name: "served", Class: figure.Ours, Loose: true}
	refused := figure.Series{Name: "refused", Color: 1, Loose: true}
	for _, o := range outcomes {
		s, y := &served, -1.5
		if !o.allowed {
			s, y = &refused, -3
		}
		s.X, s.Y = append(s.X, o.start.Seconds()), append(s.Y, y)
	}
	p := figure.Panel{
		Title: a.String(), Note: fmt.Sprintf("%s. %d of %d served.", captions[a], len(served.X), len(outcomes)),
		Top: 12, Series: []figure.Series{used, limit, served, refused},
	}
	if a.ResetsAtOnce() {
		for _, reset := range resets {
			p.Spans = append(p.Spans, figure.Span{From: reset.Seconds() - 0.05, To: reset.Seconds() + 0.05})
		}
	}
	return p
}
