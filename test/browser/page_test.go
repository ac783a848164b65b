package browser_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// bar is the content of a bar.
type bar struct {
	Name, Text  string
	Used, Left  int64
	Capacity    int64
	Reset       int64 // in seconds since 1970
	Seconds     int64 // until Reset
	Width       float64
	ValueNow    int64
	ValueMax    int64
	ServerNowMS float64 // by the page's estimate
}

func (p *tab) bars() map[string]bar {
	p.t.Helper()
	all := make(map[string]bar)
	for _, b := range value[[]bar](p, `[...document.querySelectorAll("#bars li")].map((e) => ({
		Name: e.dataset.name, Text: e.querySelector(".num").textContent, Used: +e.dataset.used, Left: +e.dataset.left,
		Capacity: +e.dataset.capacity, Reset: +e.dataset.reset, Seconds: +e.dataset.seconds,
		Width: e.querySelector(".track").clientWidth ? parseFloat(e.querySelector(".fill").style.width) : -1,
		ValueNow: +e.querySelector(".track").ariaValueNow, ValueMax: +e.querySelector(".track").ariaValueMax, ServerNowMS: serverNow()}))`) {
		all[b.Name] = b
	}
	return all
}

var item = regexp.MustCompile(`"([^"]+)";r=(\d+);t=(\d+)`)

// checkBars compares the bars with a response.
func (p *tab) checkBars(step string, r response) {
	p.t.Helper()
	bars := p.bars()
	number := func(name string) int64 {
		n, err := strconv.ParseInt(r.header.Get(name), 10, 64)
		if err != nil {
			p.t.Fatalf("%s: %s: %v", step, name, err)
		}
		return n
	}
	resource, found := r.header.Get("X-RateLimit-Resource"), false
	items := item.FindAllStringSubmatch(r.header.Get("RateLimit"), -1)
	if len(items) == 0 {
		p.t.Fatalf("%s: no header RateLimit in %v", step, r)
	}
	for _, m := range items {
		b, ok := bars[m[1]]
		if left, _ := strconv.ParseInt(m[2], 10, 64); !ok || b.Left != left || b.Used != b.Capacity-left {
			p.t.Errorf("%s: the bar of %s is %+v; the header says %s", step, m[1], b, m[0])
		}
		if !strings.Contains(b.Text, fmt.Sprintf("%d used, %d left", b.Used, b.Left)) || b.ValueNow != b.Used || b.ValueMax != b.Capacity ||
			math.Abs(b.Width-100*float64(b.Used)/float64(b.Capacity)) > 0.1 {
			p.t.Errorf("%s: what the bar of %s shows differs: %+v", step, m[1], b)
		}
		if b.Used > 0 && !strings.Contains(b.Text, fmt.Sprintf("reset in %d s", b.Seconds)) {
			p.t.Errorf("%s: the bar of %s has %q, and %d seconds left", step, m[1], b.Text, b.Seconds)
		}
		// t seconds were left when the response came.
		t, _ := strconv.ParseInt(m[3], 10, 64)
		if b.Used > 0 && (b.Seconds > t+1 || b.Seconds < t-10) {
			p.t.Errorf("%s: the bar of %s says %d s to its reset; the header said %d", step, m[1], b.Seconds, t)
		}
		if (m[1] == resource || strings.HasPrefix(m[1], resource+"-")) && b.Capacity == number("X-RateLimit-Limit") && b.Left == number("X-RateLimit-Remaining") {
			found = true
			if b.Used != number("X-RateLimit-Used") || b.Reset != number("X-RateLimit-Reset") {
				p.t.Errorf("%s: the bar of %s is %+v; want what X-RateLimit says in %v", step, m[1], b, r.header)
			}
			if want := math.Ceil(float64(b.Reset) - b.ServerNowMS/1000); math.Abs(want-float64(b.Seconds)) > 1 {
				p.t.Errorf("%s: the bar of %s says %d s, and it is %v s", step, m[1], b.Seconds, want)
			}
		}
	}
	if !found {
		p.t.Errorf("%s: there is no bar of %s in %v", step, resource, bars)
	}
}

func TestBarsShowWhatHeadersSay(t *testing.T) {
	p := open(t, startDemo(t).URL)
	for i := range 3 {
		p.checkBars(fmt.Sprint("request ", i), p.click("send-one", 1))
	}
	p.checkBars("ten", p.click("send-ten", 10))
	if b := p.bars()["core"]; b.Used != 13 || b.Left != 47 {
		t.Errorf("after 13 requests: %+v", b)
	}

	free := p.click("send-conditional", 1)
	p.checkBars("conditional", free)
	if b := p.bars(); free.status != http.StatusNotModified || b["core"].Used != 13 || b["secondary"].Used != 14 {
		t.Errorf("a conditional request: status %d, bars %+v; want a 304 that is free under core alone", free.status, b)
	}

	p.checkBars("costly", p.click("send-costly", 1))
	if b := p.bars()["core"]; b.Used != 24 {
		t.Errorf("after an export that costs 11: %+v, want 24", b)
	}

	p.checkBars("search", p.click("send-search", 1))
	p.checkBars("feed", p.click("send-feed", 1))
	if b := p.bars(); b["org"].Used != 1 || b["org.member"].Used != 1 {
		t.Errorf("after a feed: %+v, want 1 of the organisation and of its member", b)
	}

	var refused response
	for range 40 { // at most 5 in 3 s, and 20 in a minute
		refused = p.click("send-login", 1)
		p.checkBars("login", refused)
		if refused.status == http.StatusTooManyRequests {
			break
		}
	}
	if refused.status != http.StatusTooManyRequests {
		t.Fatalf("the last login's status is %d, want 429", refused.status)
	}
	if _, ok := p.bars()["auth.createToken"]; ok {
		t.Error("auth.createToken has a bar next to those of its two limits")
	}
	retry := value[string](p, `document.querySelector("#responses li").textContent`)
	if !strings.Contains(retry, "429") || !regexp.MustCompile(`again (in \d+ s|now)`).MatchString(retry) {
		t.Errorf("the list says %q; want a 429 and when to try again", retry)
	}
	p.wait(`document.querySelector("#responses .retry").textContent === "again now"`)
	if used := p.bars()["auth.createToken-3s"].Used; used != 0 {
		p.wait(`document.querySelector('[data-name="auth.createToken-3s"]').dataset.used === "0"`)
	}
}

// The page's own requests are free.
func TestLookingIsFree(t *testing.T) {
	d := startDemo(t)
	p := open(t, d.URL)
	for range 5 {
		value[any](p, `Promise.all([look(), readState(), five("GET")]).then(() => 0)`)
	}
	r, err := http.Get(d.URL + "/rate_limit")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var answer struct {
		Resources map[string]struct{ Used int64 }
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil || len(answer.Resources) != 4 {
		t.Fatalf("%+v, %v; want four resources", answer, err)
	}
	for name, l := range answer.Resources {
		if l.Used != 0 {
			t.Errorf("%d of %s are used by looking", l.Used, name)
		}
	}
}

func TestCallersHaveTheirOwnBars(t *testing.T) {
	p := open(t, startDemo(t).URL)
	p.click("send-one", 1)
	p.press(`input[value="alice"]`)
	p.wait(`bars.get("core")?.used === 0`)
	p.checkBars("alice", p.click("send-one", 1))
	p.press(`input[value="this address"]`)
	p.wait(`bars.get("core")?.used === 1`)
	p.checkBars("this address", p.click("send-one", 1))
	if b := p.bars()["core"]; b.Used != 2 {
		t.Errorf("back at the address: %+v, want 2 used", b)
	}
}

// Every two seconds the page reads its state, also while it waits for a response.
func TestStateIsReadWhileARequestIsUnderWay(t *testing.T) {
	p := open(t, startDemo(t).URL)
	value[any](p, `{ const f = fetch; fetch = async (path, ...rest) => {
		const response = await f(path, ...rest);
		if (path === kinds[0].path) await readState();
		return response;
	}; null }`)
	value[any](p, `send(kinds[0]).then(() => null)`)
	if got := p.listed(); got != 1 {
		t.Errorf("the page lists %d responses, want the one", got)
	}
	p.checkBars("one", p.lastLimited())
}

func TestStreamSendsAtItsRateUntilItIsStopped(t *testing.T) {
	p := open(t, startDemo(t).URL)
	p.press("#stream")
	p.wait(`document.querySelectorAll("#responses li").length >= 5`)
	p.press("#stream")
	p.wait(`document.querySelector("#stream").textContent === "Start a stream"`)
	p.wait(`new Promise((done) => { const n = bars.get("secondary").used; setTimeout(() => done(bars.get("secondary").used === n), 500); })`)
}

// All five decide equally until their algorithms differ: of 12 at once, each serves 10.
func TestFiveAlgorithms(t *testing.T) {
	p := open(t, startDemo(t).URL)
	p.press("#five-ten")
	p.wait(`document.querySelectorAll('#panels > div[data-served]').length === 5 && [...document.querySelectorAll("#panels > div")].every((e) => +e.dataset.served + +e.dataset.refused === 10)`)
	type panel struct{ Name, Served, Refused, Area, Marks string }
	panels := value[[]panel](p, `[...document.querySelectorAll("#panels > div")].map((e) => ({Name: e.dataset.algorithm, Served: e.dataset.served,
		Refused: e.dataset.refused, Area: e.querySelector(".area").getAttribute("d"), Marks: e.querySelector(".ok").getAttribute("d")}))`)
	for _, a := range panels {
		if a.Served != "10" || a.Refused != "0" || len(a.Area) < 10 || strings.Count(a.Marks, "M") != 10 {
			t.Errorf("after ten: %+v; want ten served and drawn", a)
		}
	}
	p.press("#five-one")
	p.wait(`+document.querySelector('[data-algorithm="sliding-log"]').dataset.refused === 1`)
}

// Every control is reached with Tab and works with the keyboard.
func TestKeyboardAlone(t *testing.T) {
	p := open(t, startDemo(t).URL)
	var reached []string
	for range 40 {
		p.do(chromedp.KeyEvent(kb.Tab))
		id := value[string](p, `document.activeElement.id || document.activeElement.name || ""`)
		if len(reached) > 0 && id == reached[0] || id == "" {
			break
		}
		reached = append(reached, id)
		if id == "send-one" {
			before := p.listed()
			p.do(chromedp.KeyEvent(kb.Enter))
			p.wait(fmt.Sprintf(`document.querySelectorAll("#responses li").length === %d`, before+1))
			p.checkBars("Enter", p.lastLimited())
		}
	}
	want := "caller send-one send-ten send-conditional send-costly send-login send-search send-feed stream rate responses five-one five-ten five-stream five-rate five-play"
	if got := strings.Join(reached, " "); got != want {
		t.Errorf("Tab reaches %s\nwant         %s", got, want)
	}
	p.do(chromedp.Focus(chromedp.CSS(`input[value="this address"]`)), chromedp.KeyEvent(kb.ArrowDown))
	p.wait(`caller.name === "alice"`)
	p.do(chromedp.Focus(chromedp.CSS("#rate")), chromedp.KeyEvent(kb.ArrowRight))
	p.wait(`document.querySelector("#rate-is").textContent === "6 a second"`)
	p.do(chromedp.Focus(chromedp.CSS("#stream")), chromedp.KeyEvent(" "))
	p.wait(`document.querySelector("#stream").textContent === "Stop the stream"`)
	p.do(chromedp.KeyEvent(" "))
	p.wait(`document.querySelector("#stream").textContent === "Start a stream"`)
}

// Every control has a name, in the tree that screen readers read.
func TestScreenReader(t *testing.T) {
	p := open(t, startDemo(t).URL)
	p.click("send-one", 1)
	unnamed := value[[]string](p, `[...document.querySelectorAll("button, input, [role=meter], [role=img], section, ol[tabindex]")].filter((e) =>
		!(e.ariaLabel || e.getAttribute("aria-labelledby") || e.labels?.length || e.textContent.trim())).map((e) => e.outerHTML)`)
	if len(unnamed) > 0 {
		t.Errorf("no name has: %q", unnamed)
	}
	if said := value[string](p, `document.querySelector("#said[role=status]").textContent`); said != "200. 59 left of core." {
		t.Errorf("it says %q", said)
	}
	p.click("send-one", 1)
	p.click("send-one", 1)
	if said := value[string](p, `document.querySelector("#said").textContent`); said != "200. 59 left of core." {
		t.Errorf("within five seconds it says also %q", said)
	}
}

// The page's clock may be wrong, change, or run fast: seconds are the server's.
func TestClock(t *testing.T) {
	ahead := call(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `{ const real = Date.now; window.ahead = 3600000; Date.now = () => real() + window.ahead; }`,
	})
	p := open(t, startDemo(t).URL, ahead)
	right := func(step string) {
		t.Helper()
		b := p.bars()["core"]
		if want := float64(b.Reset) - float64(time.Now().UnixMilli())/1000; math.Abs(float64(b.Seconds)-want) > 2 {
			t.Errorf("%s: the bar says %d s, and it is %.1f s", step, b.Seconds, want)
		}
	}
	p.checkBars("an hour ahead", p.click("send-one", 1))
	right("an hour ahead")
	value[any](p, `window.ahead = -600000`)
	p.checkBars("ten minutes behind", p.click("send-one", 1))
	right("ten minutes behind")

	// A response a second for ten minutes, each taking 3 to 90 ms, on a clock that runs 0.1 %
	// fast: the worst case for the page's estimate of the server's clock.
	worst := value[float64](p, `(() => {
		const real = Date.now, began = 1900000000000;
		let at = began, worst = 0;
		Date.now = () => 5000 + began + 1.001 * (at - began);
		for (let i = 0; i < 600; i++) {
			at += 1000 + (i * 37) % 211;
			const sent = Date.now();
			at += 1 + (i * 13) % 30;
			const date = new Date(Math.floor(at / 1000) * 1000).toUTCString();
			at += 2 + (i * 29) % 60;
			measureClock({headers: {get: () => date}}, sent);
			if (i > 30) worst = Math.max(worst, Math.abs(serverNow() - at));
		}
		Date.now = real;
		return worst;
	})()`)
	if worst > 500 {
		t.Errorf("the page is off by %.0f ms, want at most 500", worst)
	}
	t.Logf("off by at most %.0f ms in ten minutes", worst)
}

// On a phone nothing is cut off; in both color schemes texts have a contrast of 4.5 or more.
func TestNarrowAndDark(t *testing.T) {
	url := startDemo(t).URL
	for _, scheme := range []string{"light", "dark"} {
		p := open(t, url,
			call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 340, Height: 700, DeviceScaleFactor: 2, Mobile: true}),
			call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
		p.click("send-one", 1)
		if over := value[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
			t.Errorf("%s: the page is %d px wider than the phone: %q", scheme, over, value[[]string](p, `[...document.querySelectorAll("body *")].filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth).map((e) => e.outerHTML.slice(0, 60))`))
		}
		low := value[[]string](p, `(() => {
			const rgb = (c) => c.match(/[\d.]+/g).map(Number);
			const lum = (c) => { const [r, g, b] = rgb(c).map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
			const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$/.test(c)) return c; } return "rgb(255, 255, 255)"; };
			const low = [];
			for (const e of document.querySelectorAll("h1, h2, h3, p, span, small, button, label, legend, output, code, strong")) {
				if (!e.textContent.trim() || !e.offsetParent) continue;
				const a = lum(getComputedStyle(e).color), b = lum(ground(e)), contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
				if (contrast < 4.5) low.push(contrast.toFixed(1) + " " + e.textContent.slice(0, 30));
			}
			return low;
		})()`)
		if len(low) > 0 {
			t.Errorf("%s: too little contrast: %q", scheme, low)
		}
		if dark := value[bool](p, `getComputedStyle(document.documentElement).backgroundColor === "rgb(20, 24, 29)"`); dark != (scheme == "dark") {
			t.Errorf("%s: dark is %t", scheme, dark)
		}
	}
}
