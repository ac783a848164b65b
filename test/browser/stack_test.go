package browser_test

import (
	"testing"

	"github.com/weir-go/weir/test/browser/internal/demo"
)

// On the stack, a Redis that stops opens no fresh window, and a count moves with its client.
func TestStack(t *testing.T) {
	d, err := demo.StartStack(bin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	p := open(t, d.URL)
	p.wait(`document.querySelector("#place").dataset.shard && document.querySelectorAll("#servers button").length === 2`)
	p.click("send-ten", 10)
	p.checkBars("ten", p.lastLimited())

	stop := `#servers button[data-name="` + value[string](p, `document.querySelector("#place").dataset.shard`) + `"]`
	p.press(stop)
	p.wait(`document.querySelector('` + stop + `').dataset.stopped === "true"`)
	p.click("send-one", 1)
	p.wait(`!document.querySelector("#undecided").hidden`)
	p.wait(`look().then(() => bars.get("core").unknown)`)
	if b := p.bars()["core"]; b.Used != 10 {
		t.Errorf("while its Redis is stopped: %+v; want what was known", b)
	}

	p.press(stop)
	p.wait(`document.querySelector('` + stop + `').dataset.stopped === "false"`)
	p.wait(`send(kinds[0]).then(() => document.querySelector("#undecided").hidden)`)
	p.checkBars("it goes on", p.lastLimited())
	if b := p.bars()["core"]; b.Used < 11 {
		t.Errorf("when its Redis goes on: %+v; want no fresh window", b)
	}
	used := p.bars()["core"].Used

	value[any](p, `$("percent").value = 100, $("percent").dispatchEvent(new Event("change"))`)
	p.wait(`readState().then(() => document.querySelector("#place").dataset.backend === "memcached")`)
	p.checkBars("on Memcached", p.click("send-one", 1))
	if b := p.bars()["core"]; b.Used != used+1 {
		t.Errorf("on Memcached: %+v; want %d used", b, used+1)
	}
}
