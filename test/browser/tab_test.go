// Package browser_test runs the demo's page in Chromium.
package browser_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	_ "github.com/weir-go/weir/cmd/demo-api/page" // go test runs again when it changes
	"github.com/weir-go/weir/test/browser/internal/chromium"
	"github.com/weir-go/weir/test/browser/internal/demo"
)

// patience bounds a test: on a busy machine, a browser takes seconds for a click.
const patience = 5 * time.Minute

// All tests share a browser and the demo's binary.
var (
	browser context.Context
	bin     string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "weir-browser-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	bin = dir
	if err := demo.Build(dir, "../.."); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, end, err := chromium.Start(dir+"/profile", 1200, 900)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer end()
	browser = ctx
	return m.Run()
}

// startDemo starts a demo that ends with the test.
func startDemo(t *testing.T) *demo.Demo {
	t.Helper()
	d, err := demo.Start(bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	return d
}

// tab is a tab of the browser, and the responses and errors that it received.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu        sync.Mutex
	responses []response
	problems  []string
}

type response struct {
	path   string
	status int
	header http.Header
}

// open opens the demo's page, and waits until its script is ready.
func open(t *testing.T, url string, before ...action) *tab {
	t.Helper()
	p := openAny(t, url, before...)
	p.wait(`document.documentElement.dataset.ready`)
	return p
}

// openAny opens a page. At the end of the test, the page must have had no exception, no error in
// its console, and no violation of its Content-Security-Policy.
func openAny(t *testing.T, url string, before ...action) *tab {
	t.Helper()
	p := &tab{t: t}
	ctx, closeTab := chromedp.NewContext(browser, chromedp.WithListener(p.event))
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithTimeout(ctx, patience)
	t.Cleanup(func() {
		cancel()
		closeTab()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Error(problem)
		}
	})
	p.do(before...)
	p.do(chromedp.Navigate(url))
	return p
}

// submit clicks an element that leads to another page, and waits for that page.
func (p *tab) submit(selector string) {
	p.t.Helper()
	value[any](p, fmt.Sprintf(`document.documentElement.dataset.old = "yes", document.querySelector(%q).click()`, selector))
	p.until(`!document.documentElement.dataset.old && document.readyState === "complete"`)
}

// until waits until an expression is true, on a page that another replaces, or that has no scripts.
func (p *tab) until(expression string) {
	p.t.Helper()
	for {
		is, err := chromedp.Run(p.ctx, chromedp.Evaluate[bool](expression))
		switch {
		case is:
			return
		case p.ctx.Err() != nil:
			p.t.Fatalf("%s: %v", expression, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type action = chromedp.Action[chromedp.Void]

// call is an action that sends one command.
func call[P, R any](command cdp.Command[P, R], params P) action {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func (p *tab) event(e any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := e.(type) {
	case *network.EventResponseReceived:
		r := response{status: int(e.Response.Status), header: make(http.Header)}
		_, r.path, _ = strings.Cut(strings.TrimPrefix(e.Response.URL, "http://"), "/")
		for name, value := range e.Response.Headers {
			r.header.Set(name, fmt.Sprint(value))
		}
		p.responses = append(p.responses, r)
	case *runtime.EventExceptionThrown:
		p.problems = append(p.problems, "exception: "+(&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
			p.problems = append(p.problems, fmt.Sprintf("console.%s", e.Type))
		}
	case *log.EventEntryAdded: // the network logs a 429, too
		if e.Entry.Source != log.EntrySourceNetwork {
			p.problems = append(p.problems, fmt.Sprintf("log: %s: %s", e.Entry.Source, e.Entry.Text))
		}
	}
}

// do runs actions, which must succeed.
func (p *tab) do(actions ...action) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits until an expression, or its promise, is true.
func (p *tab) wait(expression string) {
	p.t.Helper()
	value[bool](p, `(async () => { while (!(await (`+expression+`))) await new Promise((done) => setTimeout(done, 10)); return true; })()`)
}

// value returns the value of an expression, or of its promise.
func value[T any](p *tab, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// listed returns the number of responses that the page lists.
func (p *tab) listed() int {
	p.t.Helper()
	return value[int](p, `document.querySelectorAll("#responses li").length`)
}

// press clicks the element that a selector finds. A script does so, because a mouse would miss
// elements that move before the click, such as the buttons below the bars.
func (p *tab) press(selector string) {
	p.t.Helper()
	p.wait(fmt.Sprintf(`(() => { const e = document.querySelector(%q); if (!e || e.disabled) return false; e.click(); return true; })()`, selector))
}

// click presses a button, waits for so many more responses, and returns the last with limits.
func (p *tab) click(button string, responses int) response {
	p.t.Helper()
	before := p.listed()
	p.press("#" + button)
	p.wait(fmt.Sprintf(`document.querySelectorAll("#responses li").length >= %d`, before+responses))
	return p.lastLimited()
}

// lastLimited returns the last response of a route with limits.
func (p *tab) lastLimited() response {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.responses) - 1; i >= 0; i-- {
		if r := p.responses[i]; !strings.HasPrefix(r.path, "page") && !strings.HasSuffix(r.path, "rate_limit") {
			return r
		}
	}
	p.t.Fatal("there was no response")
	return response{}
}
