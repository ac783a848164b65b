// Command shots takes the README's pictures of the demo's page, in Chromium:
//
//	go run ./shots DIR
//
// writes DIR/page.png and DIR/page.gif.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	return shoot(ctx, filepath.Join(dir, "page.png"), actions...)
}

// film shoots a newcomer's first steps: a frame after each press, and some in between.
func film(ctx context.Context, d *demo.Demo, dir string) error {
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(filmWidth, filmHeight), chromedp.Navigate(d.URL), ready); err != nil {
		return err
	}
	presses := []string{"", "", "send-one", "", "send-one", "", "send-ten", "", "", "send-conditional", "", "", "send-costly", "", "", "send-search", "",
		"send-login", "send-login", "send-login", "send-login", "send-login", "send-login", "", "", "", "", "", "", "", "", "", "", "", "", "send-login", "", "", "", ""}
	frames, err := os.MkdirTemp("", "weir-frames-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(frames)
	for i, button := range presses {
		actions := []action{chromedp.Sleep(frameTime)}
		if button != "" {
			actions = append([]action{press(button)}, actions...)
		}
		if err := shoot(ctx, filepath.Join(frames, fmt.Sprintf("%03d.png", i)), actions...); err != nil {
			return err
		}
	}
	// One palette for all frames, and two seconds more of the last one.
	const filter = "tpad=stop_mode=clone:stop_duration=2,split[a][b];[a]palettegen[palette];[b][palette]paletteuse=dither=none"
	output, err := exec.CommandContext(ctx, "ffmpeg", "-v", "error", "-y", "-framerate", fmt.Sprint(int(time.Second/frameTime)),
		"-i", filepath.Join(frames, "%03d.png"), "-vf", filter, filepath.Join(dir, "page.gif")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ffmpeg: %w\n%s", err, output)
	}
	return nil
}

type action = chromedp.Action[chromedp.Void]

// shoot writes a screenshot of the page after some actions.
func shoot(ctx context.Context, name string, actions ...action) error {
	if err := chromedp.Do(ctx, actions...); err != nil {
		return err
	}
	shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	return os.WriteFile(name, shot, 0o644) //nolint:gosec // a picture for everybody
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
