package envoyfile

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler/quota"
)

// Check calls mustBe for each value that is missing, or wrong next to others, and reads the
// metadata. Parse calls it.
func (f *File) Check(mustBe func(path, right string)) {
	if f.Domain == "" {
		mustBe("domain", "the name of a domain, such as edge_proxy")
	}
	checkAll(f.Descriptors, "descriptors", 1, f.supports, mustBe)
}

type pair struct{ key, value string }

// maxDepth bounds the nesting of descriptors. The name of a rule has all descriptors above it,
// so without a bound a small message would need gigabytes.
const maxDepth = 100

func checkAll(list []Descriptor, path string, depth int, supports Supports, mustBe func(path, right string)) {
	if depth > maxDepth && len(list) > 0 {
		mustBe(path, fmt.Sprintf("left out: at most %d descriptors may be below one another", maxDepth))
		return
	}
	first := make(map[pair]int)
	for i := range list {
		d, place := &list[i], fmt.Sprintf("%s[%d]", path, i)
		p := pair{d.Key, d.Value}
		if before, repeated := first[p]; d.Key == "" {
			mustBe(place+".key", "a key, such as remote_address")
		} else if repeated {
			mustBe(place+".key", fmt.Sprintf("another, or have another value: %s[%d] has both", path, before))
		} else {
			first[p] = i
		}
		d.check(place, supports, mustBe)
		checkAll(d.Descriptors, place+".descriptors", depth+1, supports, mustBe)
	}
}

func (d *Descriptor) check(place string, supports Supports, mustBe func(path, right string)) {
	if d.ShareThreshold && !strings.Contains(d.Key+d.Value, "*") {
		mustBe(place+".share_threshold", "left out: it shares one count among the values that a * matches, and value has no *")
	}
	wrong := false
	if d.Metadata.Kind != 0 {
		var decoded any // fails for an alias within itself
		if wrong = d.Metadata.Decode(&decoded) != nil; !wrong {
			d.Fields, wrong = plain(&d.Metadata).(map[string]any)
			wrong = !wrong && decoded != nil
		}
	}
	if _, err := json.Marshal(d.Fields); wrong || err != nil {
		mustBe(place+".metadata", "a mapping of values that JSON can represent")
	}
	if d.RateLimit != nil {
		d.RateLimit.check(place+".rate_limit", supports, mustBe)
	}
}

func (l *RateLimit) check(place string, supports Supports, mustBe func(path, right string)) {
	for i, r := range l.Replaces {
		switch r.Name {
		case "":
			mustBe(fmt.Sprintf("%s.replaces[%d].name", place, i), "the name of a limit")
		case l.Name:
			mustBe(fmt.Sprintf("%s.replaces[%d].name", place, i), "the name of another limit: this is its own")
		}
	}
	if l.Unlimited {
		for key, set := range map[string]bool{
			"unit": l.Unit != 0 && l.Unit != wrongUnit, "calendar": l.Calendar != nil, "algorithm": l.Algorithm != 0,
			"burst": l.Burst != 0, "report": l.Report, "consistency": l.Level != 0,
		} {
			if set {
				mustBe(place+"."+key, "left out, because unlimited is true")
			}
		}
		return
	}
	if l.RequestsPerUnit == nil {
		mustBe(place+".requests_per_unit", countMustBe)
	}
	if l.Calendar != nil && !l.checkCalendar(place, mustBe) {
		return
	}
	switch {
	case l.Unit == wrongUnit:
		return
	case l.Unit == 0:
		mustBe(place+".unit", unitMustBe)
		return
	case l.Units() == 0 || int64(l.Units()) > int64(quota.MaxWindow/l.Unit.Window()):
		mustBe(place+".unit_multiplier", fmt.Sprintf("from 1 to %d, as many units as a window may have", quota.MaxWindow/l.Unit.Window()))
		return
	case l.Burst != 0 && !quota.Algorithm(l.Algorithm).Drains():
		mustBe(place+".burst", "left out, or algorithm must be token-bucket")
		return
	case l.Requests() == 0:
		return
	}
	l.checkPolicy(place, supports, mustBe)
}

// checkPolicy checks the policy that l makes.
func (l *RateLimit) checkPolicy(place string, supports Supports, mustBe func(path, right string)) {
	p := l.Policy("check")
	if err := p.Validate(); err != nil {
		mustBe(place+".requests_per_unit", "within the bounds of a limit: "+err.Error())
	} else if l.Level != consistency.Exact {
		if err := supports(p, l.Level); err != nil {
			mustBe(place+".consistency", "one that this limit can have: "+err.Error())
		}
	}
}

// checkCalendar checks the calendar of l, and sets its unit. It reports whether l can be checked further.
func (l *RateLimit) checkCalendar(place string, mustBe func(path, right string)) bool {
	switch {
	case l.Unit != 0:
		mustBe(place+".unit", "left out, because calendar is set")
	case l.UnitMultiplier != nil:
		mustBe(place+".unit_multiplier", "left out, because calendar is set")
	case l.Algorithm != 0:
		mustBe(place+".algorithm", "left out, because calendar is set, and only a fixed-window has one")
		return false
	}
	_ = l.Unit.UnmarshalText([]byte(l.Calendar.Period.String())) // a wrong calendar sets wrongUnit
	return true
}

// plain returns the value of a node with keys as text, such as 1 and true, and dates as they are
// written.
func plain(n *yaml.Node) any {
	switch n.Kind {
	case yaml.AliasNode:
		return plain(n.Alias)
	case yaml.DocumentNode:
		return plain(n.Content[0])
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			list[i] = plain(item)
		}
		return list
	case yaml.MappingNode:
		fields := make(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], plain(n.Content[i+1])
			if merged, ok := value.(map[string]any); ok && key.Tag == "!!merge" {
				for name, v := range merged {
					if _, exists := fields[name]; !exists {
						fields[name] = v
					}
				}
				continue
			}
			fields[key.Value] = value
		}
		return fields
	case yaml.ScalarNode, yaml.StreamNode:
	}
	if n.ShortTag() == "!!timestamp" {
		return n.Value
	}
	var value any
	if n.Decode(&value) != nil {
		return n.Value
	}
	return value
}
