package browser_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/weir-go/weir/test/browser/internal/demo"
)

// clientPage starts a demo with an operator, and returns it with the address of the page about one
// client, with the operator's password or another.
func clientPage(t *testing.T) (d *demo.Demo, with func(password string) string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "demo.yaml")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "operators"), []byte("dora:correct-horse-battery\n"), 0o600),
		os.WriteFile(config, []byte("operators_file: operators\npolicies: {core: 3 per 1h}\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	d, err := demo.Start(bin, "-config", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	return d, func(password string) string {
		return "http://dora:" + password + "@" + strings.TrimPrefix(d.Debug, "http://") + "/debug/weir/client"
	}
}

func status(t *testing.T, url string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer demo-alice")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// An operator with a phone, without JavaScript, finds the refused client, raises, blocks, unblocks
// and resets it. Nothing is wider than the phone.
func TestOneClientOnAPhone(t *testing.T) {
	d, with := clientPage(t)
	api := d.URL + "/repos/acme/rockets"
	for _, want := range []int{200, 200, 200, 429} {
		if got := status(t, api); got != want {
			t.Fatalf("status %d, want %d", got, want)
		}
	}
	p := openAny(t, with("correct-horse-battery"),
		call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 360, Height: 700, DeviceScaleFactor: 2, Mobile: true}),
		call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	fits := func(step string) {
		t.Helper()
		if over := value[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
			t.Errorf("%s: the page is %d px wider than the phone", step, over)
		}
		unnamed := value[[]string](p, `[...document.querySelectorAll("button, input:not([type=hidden]), select")].filter((e) => !(e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)`)
		if len(unnamed) > 0 {
			t.Errorf("%s: no name has: %q", step, unnamed)
		}
	}
	fits("at first")
	p.do(chromedp.SendKeys(chromedp.CSS("#client"), "alice"))
	p.submit("#look")
	p.until(`document.querySelector("#verdict")?.textContent.startsWith("Refused by core until")`)
	fits("refused")
	for _, step := range []struct {
		action, says string
		status       int
	}{{"raise", "in force", 200}, {"block", "is blocked", 429}, {"unblock", "is removed", 429}, {"reset", "is reset", 200}} {
		if step.action == "raise" {
			value[any](p, `document.querySelector('[data-policy=core] [name=limits]').value = "50 per 1h"`)
		}
		p.do(chromedp.SendKeys(chromedp.CSS(`[data-policy="core"] [name=reason]`), "paid at 3 am, ticket-with-a-very-long-name-that-has-no-blanks-at-all-in-it-1234567890"))
		p.submit(fmt.Sprintf(`[data-policy="core"] button[value=%s]`, step.action))
		p.until(fmt.Sprintf(`document.querySelector("[role=status]")?.textContent.includes(%q)`, step.says))
		fits(step.action)
		if got := status(t, api); got != step.status {
			t.Errorf("after %s: status %d, want %d", step.action, got, step.status)
		}
	}
}

// A wrong password shows nothing; a form on another site's page changes nothing, and neither does a
// link with an action in it.
func TestOneClientIsProtected(t *testing.T) {
	d, with := clientPage(t)
	api := d.URL + "/repos/acme/rockets"
	wrong := openAny(t, "about:blank")
	if err := chromedp.Do(wrong.ctx, chromedp.Navigate(with("wrong"))); err == nil || !strings.Contains(err.Error(), "ERR_INVALID_AUTH_CREDENTIALS") {
		t.Errorf("with a wrong password: %v; want the browser to ask for another", err)
	}
	const block = "policy=core&key=subject:alice&action=block&reason=none&for=1h"
	p := openAny(t, with("correct-horse-battery")+"?kind=user&client=alice&"+block)
	p.until(`document.querySelector("#verdict")?.textContent.startsWith("Allowed")`)
	if got := status(t, api); got != 200 {
		t.Errorf("after a GET: status %d", got)
	}
	inputs := ""
	for field := range strings.SplitSeq(block, "&") {
		name, text, _ := strings.Cut(field, "=")
		inputs += fmt.Sprintf(`<input name=%q value=%q>`, name, text)
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method="post" action="%s/debug/weir/client">%s<button id="go">win</button></form>`, d.Debug, inputs)
	}))
	defer other.Close()
	p.do(chromedp.Navigate(strings.Replace(other.URL, "127.0.0.1", "localhost", 1)))
	p.submit("#go")
	p.until(`document.body.textContent.includes("from a page of another site")`)
	if got := status(t, api); got != 200 {
		t.Errorf("after another site's POST: status %d", got)
	}
}
