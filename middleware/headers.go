package middleware

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/weir-go/weir/throttler"
)

// The headers' names in Go's canonical case; on the wire case does not matter.
const (
	headerLimit     = "X-Ratelimit-Limit"
	headerRemaining = "X-Ratelimit-Remaining"
	headerUsed      = "X-Ratelimit-Used"
	headerReset     = "X-Ratelimit-Reset"
	headerResource  = "X-Ratelimit-Resource"
	exposed         = "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Used, X-RateLimit-Reset, X-RateLimit-Resource, Retry-After, RateLimit-Policy, RateLimit"
)

// writeHeaders tells the client where it stands, from d and nothing else. All
// five values share one string and one slice: this runs on every response.
func (t *throttle) writeHeaders(h http.Header, d throttler.Decision) {
	if t.DryRun != nil {
		return // they are those of what is enforced
	}
	s := d.Binding()
	var buf [96]byte
	var ends [4]int
	b := buf[:0]
	for i, n := range [...]int64{s.Limit.Capacity(), s.Remaining, s.Used, epochSeconds(s.ResetAt)} {
		b = strconv.AppendInt(b, n, 10)
		ends[i] = len(b)
	}
	numbers := string(b)
	values := []string{numbers[:ends[0]], numbers[ends[0]:ends[1]], numbers[ends[1]:ends[2]], numbers[ends[2]:ends[3]], s.Policy.Name}
	h[headerLimit] = values[0:1:1]
	h[headerRemaining] = values[1:2:2]
	h[headerUsed] = values[2:3:3]
	h[headerReset] = values[3:4:4]
	h[headerResource] = values[4:5:5]
	if t.RateLimitFields {
		writeFields(h, d)
	}
	if t.ExposeHeaders && !slices.Contains(h["Access-Control-Expose-Headers"], exposed) {
		h.Add("Access-Control-Expose-Headers", exposed)
	}
}

// epochSeconds rounds up: at that second, the window is over.
func epochSeconds(t time.Time) int64 {
	return ceilDiv(t.UnixMilli(), 1000)
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return ceilDiv(d.Milliseconds(), 1000) }

func ceilDiv(a, b int64) int64 {
	if a <= 0 {
		return 0
	}
	return (a-1)/b + 1
}
