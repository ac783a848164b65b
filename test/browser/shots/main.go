// Command shots takes the README's pictures of the demo's page, in Chromium:
//
//	go run ./shots DIR
//
// writes DIR/page.png and DIR/page.gif.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/weir-go/weir/test/browser/internal/chromium"
	"github.com/weir-go/weir/test/browser/internal/demo"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: shots DIR\nor simply: make page-shots")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "shots:", err)
		os.Exit(1)
	}
}

// Sizes: the page on a desktop, and its upper part in the film.
const (
	pictureWidth, pictureHeight = 1120, 1310
	filmWidth, filmHeight       = 960, 840
	frameTime                   = 250 * time.Millisecond
)

func run(dir string) (err error) {
	temp, err := os.MkdirTemp("", "weir-shots-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	if err := demo.Build(temp, "../.."); err != nil {
		return err
	}
	ctx, end, err := chromium.Start(filepath.Join(temp, "profile"), pictureWidth, pictureHeight)
	if err != nil {
		return err
	}
	defer end()
	for _, take := range []func(context.Context, *demo.Demo, string) error{film, picture} {
		d, err := demo.Start(temp)
		if err != nil {
			return err
		}
		err = take(ctx, d, dir)
		d.Stop()
		if err != nil {
			return err
		}
	}
	return nil
}

func picture(ctx context.Context, d *demo.Demo, dir string) error {
	actions := []action{
		chromedp.EmulateViewport(pictureWidth, pictureHeight), chromedp.Navigate(d.URL), ready,
		press("five-play"), press("send-ten"), press("send-conditional"), press("send-costly"), press("send-search"), press("send-feed"),
		chromedp.Sleep(16 * time.Second), // the minute of docs/start/algorithms.md continues
	}
	for range 6 {
		actions = append(actions, press("send-login"))
	}
	actions = append(actions, script(`document.activeElement.blur()`), chromedp.Sleep(time.Second))
	img, err := shoot(ctx, actions...)
	if err != nil {
		return err
	}
	var file bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&file, paletted([]image.Image{img})[0]); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "page.png"), file.Bytes(), 0o644) //nolint:gosec // a picture for everybody
}

// film shoots a newcomer's first steps: a frame after each press, and some in between.
func film(ctx context.Context, d *demo.Demo, dir string) error {
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(filmWidth, filmHeight), chromedp.Navigate(d.URL), ready); err != nil {
		return err
	}
	presses := []string{"", "", "send-one", "", "send-one", "", "send-ten", "", "", "send-conditional", "", "", "send-costly", "", "", "send-search", "",
		"send-login", "send-login", "send-login", "send-login", "send-login", "send-login", "", "", "", "", "", "", "", "", "", "", "", "", "send-login", "", "", "", ""}
	var frames []image.Image
	for _, button := range presses {
		actions := []action{chromedp.Sleep(frameTime)}
		if button != "" {
			actions = append([]action{press(button)}, actions...)
		}
		frame, err := shoot(ctx, actions...)
		if err != nil {
			return err
		}
		frames = append(frames, frame)
	}
	file, err := animation(frames, frameTime)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "page.gif"), file, 0o644) //nolint:gosec // a picture for everybody
}

type action = chromedp.Action[chromedp.Void]

// shoot returns a screenshot of the page after some actions.
func shoot(ctx context.Context, actions ...action) (image.Image, error) {
	if err := chromedp.Do(ctx, actions...); err != nil {
		return nil, err
	}
	shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return nil, err
	}
	return png.Decode(bytes.NewReader(shot))
}

// script runs a line of JavaScript.
func script(line string) action {
	return chromedp.Evaluate[chromedp.Void](line, chromedp.EvalAwaitPromise)
}

var ready = script(`(async () => { while (!document.documentElement.dataset.ready) await new Promise((done) => setTimeout(done, 10)); })()`)

// press presses a button, and leaves the page where it is.
func press(button string) action {
	return script(`(() => { const b = document.getElementById("` + button + `"); b.focus({preventScroll: true}); b.click(); })()`)
}
