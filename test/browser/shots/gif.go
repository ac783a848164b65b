package main

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/draw"
	"image/gif"
	"maps"
	"slices"
	"time"
)

// colors is the number of colors in a palette, not counting the transparent one.
const colors = 255

// paletted returns images in one palette of their most frequent colors. A page has few colors;
// the edges of its letters have more, but look right in the nearest one.
func paletted(images []image.Image) []*image.Paletted {
	counts := make(map[color.RGBA]int)
	for _, img := range images {
		each(img, func(_, _ int, c color.RGBA) { counts[c]++ })
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	palette := color.Palette{color.Transparent}
	for _, c := range frequent[:min(colors, len(frequent))] {
		palette = append(palette, c)
	}
	nearest := make(map[color.RGBA]uint8)
	all := make([]*image.Paletted, len(images))
	for i, img := range images {
		all[i] = image.NewPaletted(image.Rect(0, 0, img.Bounds().Dx(), img.Bounds().Dy()), palette)
		each(img, func(x, y int, c color.RGBA) {
			index, ok := nearest[c]
			if !ok {
				index = uint8(1 + palette[1:].Index(c)) //nolint:gosec // at most colors
				nearest[c] = index
			}
			all[i].SetColorIndex(x, y, index)
		})
	}
	return all
}

// each calls do for the color of each pixel, opaque.
func each(img image.Image, do func(x, y int, c color.RGBA)) {
	b := img.Bounds()
	rgba := image.NewRGBA(image.Rect(0, 0, b.Dx(), b.Dy()))
	draw.Draw(rgba, rgba.Rect, img, b.Min, draw.Src)
	for y := range b.Dy() {
		for x := range b.Dx() {
			c := rgba.RGBAAt(x, y)
			c.A = 255
			do(x, y, c)
		}
	}
}

// animation returns a GIF that repeats. Each frame contains only the changes to the last one.
func animation(images []image.Image, each time.Duration) ([]byte, error) {
	frames := paletted(images)
	var g gif.GIF
	var last *image.Paletted
	for _, frame := range frames {
		changed := changes(last, frame)
		last = frame
		if changed.Rect.Empty() { // no change: the last frame lasts longer
			g.Delay[len(g.Delay)-1] += delay(each)
			continue
		}
		g.Image, g.Delay, g.Disposal = append(g.Image, changed), append(g.Delay, delay(each)), append(g.Disposal, gif.DisposalNone)
	}
	g.Delay[len(g.Delay)-1] += delay(2 * time.Second)
	g.Config = image.Config{Width: frames[0].Rect.Dx(), Height: frames[0].Rect.Dy(), ColorModel: frames[0].Palette}
	var file bytes.Buffer
	err := gif.EncodeAll(&file, &g)
	return file.Bytes(), err
}

// delay returns d in a GIF's unit, 10 ms.
func delay(d time.Duration) int { return int(d / (10 * time.Millisecond)) }

// changes returns the smallest part of next that contains all pixels that differ from last,
// with the other pixels transparent. If last is nil, it returns next.
func changes(last, next *image.Paletted) *image.Paletted {
	if last == nil {
		return next
	}
	bounds := image.Rectangle{}
	for y := range next.Rect.Dy() {
		for x := range next.Rect.Dx() {
			if last.ColorIndexAt(x, y) != next.ColorIndexAt(x, y) {
				bounds = bounds.Union(image.Rect(x, y, x+1, y+1))
			}
		}
	}
	part := image.NewPaletted(bounds, next.Palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if index := next.ColorIndexAt(x, y); last.ColorIndexAt(x, y) != index {
				part.SetColorIndex(x, y, index)
			}
		}
	}
	return part
}
