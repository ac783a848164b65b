package descriptors

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/fleet/modes"
	"github.com/weir-go/weir/quota"
)

// Check calls mustBe for each value that is wrong next to others.
func (f *File) Check(mustBe func(path, right string)) {
	if f.Domain == "" {
		mustBe("domain", "the name of a domain, such as edge_proxy")
	}
	checkAll(f.Descriptors, "descriptors", f.supports, mustBe)
}

type pair struct{ key, value string }

func checkAll(all []Descriptor, path string, supports Supports, mustBe func(path, right string)) {
	first := make(map[pair]string)
	for i := range all {
		d, at := &all[i], fmt.Sprintf("%s[%d]", path, i)
		p := pair{string(d.Key), string(d.Value)}
		if before, again := first[p]; d.Key == "" {
			mustBe(at+".key", "a key, such as remote_address")
		} else if again {
			mustBe(at+".key", "another, or have another value: "+before+" has both")
		} else {
			first[p] = at
		}
		d.check(at, supports, mustBe)
		checkAll(d.Descriptors, at+".descriptors", supports, mustBe)
	}
}

func (d *Descriptor) check(at string, supports Supports, mustBe func(path, right string)) {
	if bool(d.ShareThreshold) && !strings.Contains(string(d.Key+d.Value), "*") {
		mustBe(at+".share_threshold", "left out: it shares the count of all values that a * stands for, and value has none")
	}
	if d.Metadata.Kind != 0 {
		var m map[string]any
		err := d.Metadata.Decode(&m)
		if err == nil {
			d.metadata, err = structpb.NewStruct(m)
		}
		if err != nil {
			mustBe(at+".metadata", "a mapping of what JSON can say")
		}
	}
	if d.RateLimit != nil {
		d.RateLimit.check(at+".rate_limit", supports, mustBe)
	}
}

func (l *RateLimit) check(at string, supports Supports, mustBe func(path, right string)) {
	for i, r := range l.Replaces {
		switch r.Name {
		case "":
			mustBe(fmt.Sprintf("%s.replaces[%d].name", at, i), "the name of a limit")
		case l.Name:
			mustBe(fmt.Sprintf("%s.replaces[%d].name", at, i), "the name of another limit: this is its own")
		}
	}
	if l.Unlimited {
		if l.Unit != 0 && l.Unit != wrongUnit {
			mustBe(at+".unit", "left out, because unlimited is true")
		}
		return
	}
	switch l.Unit {
	case wrongUnit:
		return
	case 0:
		mustBe(at+".unit", unitMustBe)
		return
	}
	switch {
	case l.Algorithm.Queues():
		mustBe(at+".algorithm", "fixed-window, sliding-window, sliding-log or token-bucket: a proxy cannot let a request wait for its start")
		return
	case l.Burst != 0 && !l.Algorithm.Drains():
		mustBe(at+".burst", "left out, or algorithm must be token-bucket")
		return
	case l.RequestsPerUnit == 0:
		return
	}
	p := l.policy("check")
	if err := p.Validate(); err != nil {
		mustBe(at+".requests_per_unit", "what a limit can have: "+err.Error())
	} else if m := modes.Mode(l.Mode); m != modes.Exact {
		if err := supports(p, m); err != nil {
			mustBe(at+".mode", "one that this limit can have: "+err.Error())
		}
	}
}

// policy returns the policy of l, which has a unit.
func (l *RateLimit) policy(name string) *quota.Policy {
	limit := quota.Limit{Quota: int64(l.RequestsPerUnit), Window: Window(l.unit()), Algorithm: l.Algorithm, Burst: l.Burst}
	limit.Aligned = limit.Algorithm.ResetsAtOnce()
	return &quota.Policy{Name: name, Limits: []quota.Limit{limit}}
}
