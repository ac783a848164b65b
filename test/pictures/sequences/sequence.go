package main

import (
	"bytes"
	"fmt"
	"html"
)

// sequence is the messages between parties, in order.
type sequence struct {
	title   string
	parties []string
	steps   []step
}

// step is a message from one party to another, unless part or has is set. Parties are
// identified by their index.
type step struct {
	from, to int
	text     string
	part     bool // it begins a part of the sequence
	has      bool // it shows a party's state: from and to are equal
	bad      bool // it is a refusal
}

func (s *sequence) say(from, to int, format string, args ...any) *step {
	s.steps = append(s.steps, step{from: from, to: to, text: fmt.Sprintf(format, args...)})
	return &s.steps[len(s.steps)-1]
}

// begin begins a part.
func (s *sequence) begin(text string) {
	s.steps = append(s.steps, step{text: text, part: true})
}

// show adds a party's state.
func (s *sequence) show(party int, text string) {
	s.steps = append(s.steps, step{from: party, to: party, text: text, has: true})
}

// Sizes of the picture, in its own units, and its colors.
const (
	width, margin    = 760, 100
	top, rise, space = 96, 28, 14

	ink, faint, rule = "#1f2933", "#57606a", "#d0d7de"
	line, bad        = "#24292f", "#b3261e"
	kept             = "#ddf4ff"
)

func (s *sequence) svg() []byte {
	height := top + 20
	for _, step := range s.steps {
		height += rise
		if step.part {
			height += space
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", html.EscapeString(s.title))
	for _, m := range [][2]string{{"a", line}, {"b", bad}} {
		fmt.Fprintf(&b, `<defs><marker id="%s" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="%s"/></marker></defs>`+"\n", m[0], m[1])
	}
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#ffffff"/>`+"\n", width, height)
	text(&b, width/2, 26, 16, ink, "middle", s.title)
	for i, party := range s.parties {
		x := s.x(i)
		fmt.Fprintf(&b, `<path d="M%d 72V%d" stroke="%s" stroke-dasharray="4 4"/>`+"\n", x, height-12, rule)
		fmt.Fprintf(&b, `<rect x="%d" y="44" width="150" height="28" rx="4" fill="#f6f8fa" stroke="%s"/>`+"\n", x-75, rule)
		text(&b, x, 63, 13, ink, "middle", party)
	}
	y := top
	for _, step := range s.steps {
		switch {
		case step.part:
			y += space
			text(&b, 14, y, 13, ink, "start", step.text)
		case step.has:
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="150" height="22" rx="3" fill="%s"/>`+"\n", s.x(step.from)-75, y-12, kept)
			text(&b, s.x(step.from), y+3, 12, ink, "middle", step.text)
		default:
			s.draw(&b, step, y)
		}
		y += rise
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// x returns the position of a party's line.
func (s *sequence) x(party int) int { return margin + party*(width-2*margin)/(len(s.parties)-1) }

func (s *sequence) draw(b *bytes.Buffer, m step, y int) {
	from, to := s.x(m.from), s.x(m.to)
	color, marker, shift := line, "a", 3
	if m.bad {
		color, marker = bad, "b"
	}
	if to < from {
		shift = -shift
	}
	fmt.Fprintf(b, `<path d="M%d %dH%d" stroke="%s" marker-end="url(#%s)"/>`+"\n", from+shift, y+6, to-shift, color, marker)
	text(b, (from+to)/2, y, 12, color, "middle", m.text)
}

func text(b *bytes.Buffer, x, y, size int, color, anchor, s string) {
	weight := "400"
	if size != 12 {
		weight = "600"
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="%d" fill="%s" text-anchor="%s" font-weight="%s">%s</text>`+"\n", x, y, size, color, anchor, weight, html.EscapeString(s))
}
