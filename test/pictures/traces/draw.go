package main

import (
	"bytes"
	"fmt"
	"time"

	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/quota"
)

// Sizes of the picture, in its own units.
const (
	width       = 960
	left, right = 24, 936
	top         = 84
	panelHeight = 136
	curveHeight = 56
)

const (
	ink, faint, grid = "#1f2933", "#6b7785", "#d9dee4"
	served, refused  = "#1d7a46", "#c62f2f"
	area, line       = "#cfe3f5", "#3b7db5"
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
	var b bytes.Buffer
	height := top + len(algorithms)*panelHeight + 30
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#ffffff"/>`+"\n", width, height)
	text(&b, left, 34, 19, ink, "600", fmt.Sprintf("The same %d requests, 10 allowed per 10 s, through each algorithm", len(arrivals())))
	legend(&b)
	for i, a := range algorithms {
		panel(&b, a, top+i*panelHeight)
	}
	axis(&b, top+len(algorithms)*panelHeight)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func legend(b *bytes.Buffer) {
	mark(b, left+4, 48, served, 12)
	text(b, left+12, 58, 12, faint, "400", "served")
	mark(b, left+68, 48, refused, 12)
	text(b, left+76, 58, 12, faint, "400", "refused")
	fmt.Fprintf(b, `<rect x="%d" y="48" width="14" height="12" fill="%s"/><path d="M%d 48h14" stroke="%s" stroke-width="1.5"/>`+"\n", left+138, area, left+138, line)
	text(b, left+158, 58, 12, faint, "400", "used")
	fmt.Fprintf(b, `<path d="M%d 54h16" stroke="%s" stroke-dasharray="4 3"/>`+"\n", left+204, faint)
	text(b, left+226, 58, 12, faint, "400", "the quota of 10")
}

func panel(b *bytes.Buffer, a quota.Algorithm, y int) {
	outcomes, curve, resets := play(a)
	allowed := 0
	for _, o := range outcomes {
		if o.allowed {
			allowed++
		}
	}
	text(b, left, y+14, 14, ink, "600", a.String())
	text(b, left+132, y+14, 12, faint, "400", fmt.Sprintf("%s. %d of %d served.", captions[a], allowed, len(outcomes)))
	base := y + 26 + curveHeight
	if a.ResetsAtOnce() {
		for _, reset := range resets {
			fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="%s"/>`+"\n", x(reset), y+22, base+26, grid)
		}
	}
	drawCurve(b, curve, base)
	fmt.Fprintf(b, `<path d="M%d %dH%d" stroke="%s" stroke-dasharray="4 3"/>`+"\n", left, base-scale(perWindow), right, faint)
	fmt.Fprintf(b, `<path d="M%d %dH%d" stroke="%s"/>`+"\n", left, base, right, grid)
	refusals := base + 16
	if a.Queues() {
		refusals += 12 // below the requests that wait
	}
	for _, o := range outcomes {
		switch {
		case !o.allowed:
			mark(b, x(o.at), refusals, refused, 10)
		case o.start > o.at: // waits
			fmt.Fprintf(b, `<path d="M%.1f %dL%.1f %d" stroke="%s" stroke-opacity=".35"/>`+"\n", x(o.at), base+4, x(o.start), base+16, served)
			mark(b, x(o.start), base+16, served, 10)
		default:
			mark(b, x(o.at), base+4, served, 10)
		}
	}
}

// drawCurve draws the used units as a stepped area.
func drawCurve(b *bytes.Buffer, curve []sample, base int) {
	var path bytes.Buffer
	last := int64(-1)
	for _, s := range curve {
		if s.used == last {
			continue
		}
		if last >= 0 {
			fmt.Fprintf(&path, "H%.1f", x(s.at))
		} else {
			fmt.Fprintf(&path, "M%.1f %d", x(s.at), base)
		}
		fmt.Fprintf(&path, "V%d", base-scale(s.used))
		last = s.used
	}
	fmt.Fprintf(b, `<path d="%sH%dV%dZ" fill="%s" stroke="%s" stroke-width="1.2"/>`+"\n", path.String(), right, base, area, line)
}

func axis(b *bytes.Buffer, y int) {
	for at := time.Duration(0); at <= duration; at += window {
		text(b, int(x(at))-8, y+8, 12, faint, "400", fmt.Sprintf("%.0f s", at.Seconds()))
	}
}

func mark(b *bytes.Buffer, x any, y int, color string, height int) {
	fmt.Fprintf(b, `<path d="M%v %dv%d" stroke="%s" stroke-width="2"/>`+"\n", x, y, height, color)
}

func text(b *bytes.Buffer, x, y, size int, color, weight, s string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="%d" fill="%s" font-weight="%s">%s</text>`+"\n", x, y, size, color, weight, s)
}

func x(at time.Duration) float64 {
	v := left + float64(right-left)*at.Seconds()/duration.Seconds()
	return float64(int(v*10)) / 10
}

func scale(used int64) int { return int(used) * curveHeight / 12 }
