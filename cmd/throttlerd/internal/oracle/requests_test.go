package oracle

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// descriptors are the file of both programs. The windows are a day or longer, so that none
// ends during the test.
const descriptors = `
domain: d
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 6, name: user}}
  - {key: user, value: vip, rate_limit: {unlimited: true, replaces: [{name: ip}]}}
  - {key: user, value: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: user, value: team-*, detailed_metric: true, rate_limit: {unit: WEEK, requests_per_unit: 4}}
  - {key: user, value: team-a*, rate_limit: {unit: week, requests_per_unit: 1000}}
  - {key: ip, rate_limit: {unit: month, requests_per_unit: 9, name: ip}}
  - {key: file, value: shared/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 40}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: model, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - key: path
    value_to_metric: true
    descriptors:
      - {key: user, rate_limit: {unit: day, requests_per_unit: 3}}
      - {key: user, value: vip, rate_limit: {unit: day, requests_per_unit: 30}}
      - key: method
        rate_limit: {unit: week, requests_per_unit: 5}
        descriptors:
          - {key: user, rate_limit: {unit: day, requests_per_unit: 2, replaces: [{name: user}]}}
  - key: path
    value: /login
    rate_limit: {unit: day, requests_per_unit: 7}
    descriptors:
      - {key: ip, rate_limit: {unit: day, requests_per_unit: 2}}
`

// generator makes random requests. Values contain its name, so that generators share no count.
type generator struct {
	*rand.Rand
	name    string
	episode int  // in values, too
	alone   bool // every count belongs to this episode
	asked   int
}

func newGenerator(name string, seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 1)), name: name}
}

// some returns one of a few values.
func (g *generator) some(what string) string {
	return fmt.Sprintf("%s-%s-%d-%d", what, g.name, g.episode, g.IntN(4))
}

// descriptor returns the entries of a random descriptor, as words.
func (g *generator) descriptor() string {
	user, ip := "user="+g.some("u"), "ip="+g.some("10.0")
	path := "path=" + []string{"/login", "/api", "/" + g.some("p")}[g.IntN(3)]
	switch g.IntN(17) {
	case 0, 1:
		return user
	case 2:
		return "user=vip"
	case 3:
		if g.IntN(4) > 0 {
			return user
		}
		return "user=none"
	case 4:
		return "user=" + g.some("team-a") // the first pattern of the file counts
	case 5:
		return "user=" + g.some("team")
	case 6:
		return ip
	case 7:
		return "file=shared/" + g.some("f")
	case 8:
		return "trial=" + g.some("t")
	case 9:
		return "model=" + g.some("m")
	case 10:
		return path + " " + user
	case 11:
		return path + " user=vip"
	case 12:
		return path + " method=" + g.some("GET")
	case 13:
		return path + " method=" + g.some("GET") + " " + user
	case 14:
		return path
	case 15:
		return path + " " + ip
	}
	return []string{"other=" + g.some("o"), user + " " + ip, "", "user=", "path= " + user, "own=" + g.some("o"), "own=" + g.some("none")}[g.IntN(7)]
}

// next returns a random request without duplicate descriptors.
func (g *generator) next() *ratelimitv3.RateLimitRequest {
	if g.asked++; g.asked%30 == 0 {
		g.episode++ // otherwise all counts would be exhausted, and stay so
	}
	req := &ratelimitv3.RateLimitRequest{Domain: "d", HitsAddend: uint32(max(0, g.IntN(9)-6))}
	if g.IntN(100) == 0 {
		req.Domain = "unknown"
	}
	before := make(map[string]bool)
	for range 1 + g.IntN(1+g.IntN(5)) {
		words := g.descriptor()
		for !g.mayAsk(words) {
			words = g.descriptor()
		}
		if before[words] || strings.HasPrefix(words, "file=") && before["file"] {
			continue
		}
		before[words], before["file"] = true, before["file"] || strings.HasPrefix(words, "file=")
		d := &commonv3.RateLimitDescriptor{}
		for _, e := range strings.Fields(words) {
			key, value, _ := strings.Cut(e, "=")
			d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		if g.IntN(8) == 0 {
			d.HitsAddend = wrapperspb.UInt64(uint64(g.IntN(3)))
		}
		if strings.HasPrefix(words, "own=") {
			d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(1 + g.IntN(4)), Unit: typev3.RateLimitUnit_DAY}
			if strings.HasPrefix(words, "own=none") {
				d.Limit.RequestsPerUnit = 0
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// mayAsk reports whether g may ask about a descriptor: not if another generator, or an earlier
// episode, uses the same count.
func (g *generator) mayAsk(words string) bool {
	file := strings.HasPrefix(words, "file=") // one count for all values
	switch {
	case g.alone:
		return strings.Contains(words, "-"+g.name+"-") && !file
	case file:
		return g.name == "r" || g.name == "0"
	}
	own := strings.Contains(words, "-"+g.name+"-") || words == "user=vip" || words == "user=none"
	return own || g.name == "r" || g.name == "0"
}

type asked interface {
	ShouldRateLimit(ctx context.Context, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error)
}

// answer returns an answer in a line: OK or OVER, and the remaining units and the limit of
// each descriptor, with ! if it is over.
func answer(ctx context.Context, s asked, req *ratelimitv3.RateLimitRequest) string {
	resp, err := s.ShouldRateLimit(ctx, req)
	if err != nil {
		return "ERROR " + err.Error()
	}
	var b strings.Builder
	b.WriteString(map[bool]string{true: "OK", false: "OVER"}[resp.GetOverallCode() == ratelimitv3.RateLimitResponse_OK])
	for _, st := range resp.GetStatuses() {
		over := map[bool]string{true: "!"}[st.GetCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT]
		switch l := st.GetCurrentLimit(); {
		case l != nil:
			fmt.Fprintf(&b, " %d/%d%.1s%s", st.GetLimitRemaining(), l.GetRequestsPerUnit(), l.GetUnit(), over)
		case st.GetLimitRemaining() > 0:
			b.WriteString(" unlimited" + over)
		default:
			b.WriteString(" -" + over)
		}
	}
	return b.String()
}

// explain returns the reason why two answers differ, or "". If atomic, refused requests charge
// nothing.
func explain(atomic bool, req *ratelimitv3.RateLimitRequest, theirs, ours string) string {
	a, b := strings.Fields(theirs), strings.Fields(ours)
	if len(a) != len(b) || len(a) != len(req.GetDescriptors())+1 {
		return ""
	}
	why := ""
	for i, d := range req.GetDescriptors() {
		if a[i+1] == b[i+1] {
			continue
		}
		kind := ""
		if len(d.GetEntries()) > 0 {
			kind = d.GetEntries()[0].GetKey()
		}
		over := [2]bool{strings.HasSuffix(a[i+1], "!"), strings.HasSuffix(b[i+1], "!")}
		switch {
		case strings.HasPrefix(a[i+1], "0/0") && a[i+1]+"!" == b[i+1]:
			why = "a check of 0 hits on a limit of 0 is over"
		// The version that is installed by its module answers OK for a descriptor over its
		// limit in quota_mode, and for the request. Later versions, like throttlerd, report
		// the descriptors that are over, and refuse if all in quota_mode are.
		case kind == "model" && over[1] && (atomic || a[i+1]+"!" == b[i+1]):
			why = "quota_mode"
		case atomic && kind == "trial" && strings.HasPrefix(a[i+1], "0/"):
			why = cmp.Or(why, "what is over in shadow_mode charges nothing")
		// throttlerd reports the rest, not 0, and charges no descriptor with room.
		case atomic && b[0] == "OVER" && over[0] == over[1]:
			why = cmp.Or(why, "a refused request charges nothing")
		default:
			return ""
		}
	}
	if a[0] != b[0] && why != "quota_mode" && !strings.HasPrefix(why, "a check") {
		return ""
	}
	return why
}
