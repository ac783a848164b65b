// Package chromium starts a headless Chromium that visits only the given pages.
package chromium

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"github.com/chromedp/chromedp"
)

const closeTimeout = 10 * time.Second

// Start starts Chromium with an empty profile in dir, and a window of that size. Tabs are
// contexts that [chromedp.NewContext] makes from ctx. Chromium ends when end is called.
func Start(dir string, width, height int) (ctx context.Context, end func(), err error) {
	path, err := find()
	if err != nil {
		return nil, nil, err
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path),
		chromedp.UserDataDir(dir),
		chromedp.WindowSize(width, height),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, // it only visits our pages
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
	)
	ctx, closeTab := chromedp.NewContext(allocator)
	end = func() {
		// A Chromium that is killed leaves a directory in the temporary directory.
		closing, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		_ = chromedp.Cancel(closing) // stop ends a Chromium that does not close
		closeTab()
		stop() // and waits for the process
	}
	if err := chromedp.Do(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return ctx, end, nil
}

func find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("chromium is not installed; install it with `make chromium`, or on Debian: apt-get install chromium")
}
