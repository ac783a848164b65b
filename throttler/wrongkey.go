package throttler

import (
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
)

// warnOfKeys warns, once for each policy, that no request has the key of a charge.
func (t *Throttler) warnOfKeys(verb string, charges []Charge) {
	for i := range charges {
		if problem, right := t.WrongKey(&charges[i]); problem != "" {
			weirlog.Ensure(t.observer).Warned(observe.Warned{
				Policy: charges[i].Policy.Name,
				Text:   verb + " is for " + problem,
				Hint:   right,
			})
		}
	}
}
