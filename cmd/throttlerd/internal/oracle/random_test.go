package oracle

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	configured "github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
	"github.com/weir-go/weir/config/envoyfile"
)

// world is a random configuration: a file, and the environment of both programs.
type world struct {
	*rand.Rand
	recent bool // the version of July 2026: metadata, * in the middle of values, quota_mode refuses
	tops   []*place
	env    []string
	last   *commonv3.RateLimitDescriptor
	domain *configured.Domain // of the file
}

// place is a descriptor of the file.
type place struct {
	key, value string
	lines      []string
	below      []*place
}

var unitNames = []string{"second", "minute", "hour", "day", "month", "year", "week"}

// newWorld returns the world of a seed.
func newWorld(seed uint64, recent bool) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 2)), recent: recent}
	w.tops = w.places(3, "")
	w.domain = w.set().Domain("d")
	set := func(chance float64, name string, values ...string) {
		if w.Float64() < chance {
			w.env = append(w.env, name+"="+values[w.IntN(len(values))])
		}
	}
	set(0.6, "LIMIT_RESPONSE_HEADERS_ENABLED", "true")
	set(0.2, "LIMIT_LIMIT_HEADER", "X-Limit")
	set(0.1, "SHADOW_MODE", "true")
	if recent {
		set(0.15, "QUOTA_MODE", "true")
	}
	set(0.5, "NEAR_LIMIT_RATIO", "0.5", "0.29", "1", "0.7")
	if recent {
		set(0.5, "RESPONSE_DYNAMIC_METADATA", "true")
	}
	set(0.35, "LOCAL_CACHE_SIZE_IN_BYTES", "1000")
	set(0.25, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")
	return w
}

func (w *world) chance(p float64) bool { return w.Float64() < p }

func pick[T any](w *world, list ...T) T { return list[w.IntN(len(list))] }

// places returns the descriptors of a level.
func (w *world) places(depth int, above string) (list []*place) {
	seen := make(map[string]bool)
	for range 1 + w.IntN(4) {
		p := &place{key: pick(w, "user", "ip", "path", "files", "a")}
		if above == "" && w.chance(0.1) {
			p.key = pick(w, "a_b", "rou*")
		}
		if w.chance(0.5) {
			p.value = pick(w, "vip", "none", "10.0.0.1", "a.b", "x:y|z", "team-*", "files/*", "*", "v1")
			if w.recent && w.chance(0.2) {
				p.value = pick(w, "a*z", "*/admin/*")
			}
			if p.key == "rou*" {
				p.value = ""
			}
		}
		name := strings.Trim(p.key+"_"+p.value, "_")
		if seen[name] {
			continue
		}
		seen[name] = true
		w.limit(p)
		if depth > 1 && w.chance(0.5) {
			p.below = w.places(depth-1, name)
		}
		list = append(list, p)
	}
	return list
}

// limit gives p a limit, or none, and flags.
func (w *world) limit(p *place) {
	add := func(format string, args ...any) { p.lines = append(p.lines, fmt.Sprintf(format, args...)) }
	if w.chance(0.75) {
		own := pick(w, "n1", "n2", "n3", "")
		var limit []string
		if w.chance(0.1) {
			limit = append(limit, "unlimited: true")
		} else {
			unit := pick(w, unitNames...)
			if w.chance(0.5) {
				unit = pick(w, "day", "hour")
			}
			limit = append(limit, "unit: "+pick(w, unit, strings.ToUpper(unit)), "requests_per_unit: "+pick(w, "0", "1", "2", "3", "5", "10", "17", "100", "4294967295"))
		}
		if own != "" {
			limit = append(limit, "name: "+own)
		}
		if other := pick(w, "n1", "n2", "n3", "n4"); other != own && w.chance(0.15) {
			limit = append(limit, "replaces: [{name: "+other+"}]")
		}
		add("rate_limit: {%s}", strings.Join(limit, ", "))
	}
	for _, flag := range []string{"shadow_mode", "detailed_metric", "value_to_metric"} {
		if w.chance(0.2) {
			add("%s: true", flag)
		}
	}
	if w.recent && w.chance(0.2) {
		add("quota_mode: true")
	}
	if strings.Contains(p.key+p.value, "*") && w.chance(0.5) {
		add("share_threshold: true")
	}
	if w.recent && w.chance(0.3) {
		add("metadata: %s", pick(w, "{model: small, n: 1}", "{model: large, deep: {a: [1, two, true], b: 2.5}}", "{other: {b: x, c: null}, 7: seven}"))
	}
}

// file returns the text of the file.
func (w *world) file() string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	var write func(list []*place, indent string)
	write = func(list []*place, indent string) {
		for _, p := range list {
			fmt.Fprintf(&b, "%s- key: %q\n", indent, p.key)
			if p.value != "" {
				fmt.Fprintf(&b, "%s  value: %q\n", indent, p.value)
			}
			for _, l := range p.lines {
				fmt.Fprintf(&b, "%s  %s\n", indent, l)
			}
			if len(p.below) > 0 {
				fmt.Fprintf(&b, "%s  descriptors:\n", indent)
				write(p.below, indent+"    ")
			}
		}
	}
	write(w.tops, "  ")
	return b.String()
}

// set returns the file as throttlerd prepares it.
func (w *world) set() *configured.Set {
	f, err := envoyfile.Parse("a.yaml", []byte(w.file()), nil)
	if err != nil {
		panic(fmt.Errorf("%w\n%s", err, w.file()))
	}
	set, err := configured.New([]*envoyfile.File{f}, false, true)
	if err != nil {
		panic(err)
	}
	return set
}

// descriptor returns a random descriptor of a request.
func (w *world) descriptor() *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for list := w.tops; len(list) > 0; {
		p := list[w.IntN(len(list))]
		key, value := p.key, p.value
		if value == "" || w.chance(0.1) {
			value = pick(w, "u1", "u2", "u3", "10.0.0.1", "vip", "", "a.b")
		}
		if key == "rou*" {
			key = "route"
		}
		value = strings.ReplaceAll(value, "*", pick(w, "", "q", "r/s"))
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
		list = p.below
		if w.chance(0.4) {
			break
		}
	}
	if w.chance(0.06) {
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: pick(w, "more", "user"), Value: "x"})
	}
	if w.chance(0.02) {
		d.Entries = d.Entries[:0]
	}
	if w.chance(0.15) {
		d.HitsAddend = wrapperspb.UInt64(uint64(w.IntN(6)))
	}
	if w.chance(0.02) {
		d.IsNegativeHits = true
	}
	if w.chance(0.08) {
		w.override(d)
	}
	return d
}

// override adds a limit to d. Entries always have the same unit: the stored keys of
// envoyproxy/ratelimit lack it, so that counts under two units are one while their windows begin
// at the same second.
func (w *world) override(d *commonv3.RateLimitDescriptor) {
	h := fnv.New32a()
	for _, e := range d.GetEntries() {
		h.Write([]byte(e.GetKey() + "=" + e.GetValue() + " "))
	}
	u := typev3.RateLimitUnit(1 + h.Sum32()%7)
	if rule, _ := w.domain.Match(nil, d.GetEntries()); rule != nil && !rule.Unlimited {
		u = typev3.RateLimitUnit(rule.Limit.GetUnit())
	}
	d.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: pick[uint32](w, 0, 1, 3, 10, 40), Unit: u}
	if !slices.Contains(w.env, "RESPONSE_DYNAMIC_METADATA=true") && w.chance(0.2) { // metadata would have it as an unknown field there
		d.Limit.UnitMultiplier = wrapperspb.UInt32(3)
	}
}

// next returns a random request.
func (w *world) next() *ratelimitv3.RateLimitRequest {
	req := &ratelimitv3.RateLimitRequest{Domain: "d", HitsAddend: uint32(max(0, w.IntN(9)-5))}
	if w.chance(0.02) {
		req.Domain = pick(w, "", "unknown", "10.0.0.1:80")
	}
	if w.chance(0.005) {
		return req
	}
	for range 1 + w.IntN(1+w.IntN(5)) {
		d := w.descriptor()
		if w.last != nil && w.chance(0.04) {
			d = proto.Clone(w.last).(*commonv3.RateLimitDescriptor)
		}
		w.last = d
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}
