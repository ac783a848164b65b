package middleware

import (
	"net/http"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	"github.com/weir-go/weir/throttler/quota"
)

// A Classifier determines the charges of a request. [Limit], [All], [IPv6Chain],
// [ClassifierFunc] and [InHandler] return one. [New] and [Status] validate the policies that
// it knows. The zero value is an error there.
type Classifier struct {
	rules []rule
	err   error // why it cannot be used
}

// rule contributes some of the charges of a request.
type rule struct {
	append   func(charges []throttler.Charge, r *http.Request) []throttler.Charge // appends the rule's
	policies []*throttler.Policy                                                  // as far as they are known
	dynamic  bool                                                                 // there may be others
	flags    flags
	forms    []policies.KeyForm // of the charges' keys; none if there may be any
	mode     quota.Mode         // unless it is Enforce, of all charges

	addresses []addressSource // that charges may use
	route     bool            // charges may use a RoutePattern
	partition *Key            // the key that its charges are within, or nil
}

// flags say how charges of a rule are treated when the response is known.
type flags uint8

const (
	noRefund     flags = 1 << iota // RefundIf does not apply
	costReported                   // the handler reports the real cost
	inHandler                      // the handler charges, by Take
)

// Limit charges each request one unit of p, to the key that key returns.
// Requests without a key share one count, so that unidentified clients are
// limited too; use [FirstOf] to fall back to the client's address. An empty key
// is an error: a 500, which the observer receives with the policy's name.
func Limit(p *throttler.Policy, key Key) Classifier {
	return Classifier{err: key.validate(), rules: []rule{{addresses: key.addresses, route: key.route, forms: key.forms, policies: []*throttler.Policy{p}, append: func(charges []throttler.Charge, r *http.Request) []throttler.Charge {
		return append(charges, p.Charge(key.orUnknown(r)))
	}}}}
}

// ClassifierFunc returns a Classifier for charges that [Limit] and [All] cannot express: costs
// that depend on the request, or policies from a database. A request is not limited if charges
// returns no charges. Declare policies that charges always uses, so that New validates them;
// others are validated with each request, and an invalid one is a 500. ClassifierFunc panics
// if charges is nil.
func ClassifierFunc(charges func(r *http.Request) []throttler.Charge, policies ...*throttler.Policy) Classifier {
	if charges == nil {
		panic("middleware: ClassifierFunc: the function is nil")
	}
	return Classifier{rules: []rule{{dynamic: true, policies: policies, append: func(list []throttler.Charge, r *http.Request) []throttler.Charge {
		return append(list, charges(r)...)
	}}}}
}

// InHandler returns a Classifier without charges. It makes [Take] work in handlers that make
// all charges themselves.
func InHandler() Classifier {
	return Classifier{rules: []rule{{flags: inHandler, append: func(list []throttler.Charge, _ *http.Request) []throttler.Charge { return list }}}}
}

// All joins the charges of classifiers: one decision takes all of them or none. Each charge
// counts for its own key. Charges [Classifier.Within] one key are decided in one atomic step;
// for others, see package quota. Here 304s are free under the first and count under the second, and
// secondary's Hidden is true, so that headers report core alone, as at GitHub:
//
//	All(Limit(core, caller), Limit(secondary, caller).NoRefund())
//
// For a limit on all callers together, use two middlewares instead, as under [New]. The
// outer one's charge is refunded if the inner one refuses. The headers report the limit that binds
// among all policies, except those that are Hidden.
func All(classifiers ...Classifier) Classifier {
	var joined Classifier
	for _, c := range classifiers {
		if joined.err == nil {
			joined.err = c.validate()
		}
		joined.rules = append(joined.rules, c.rules...)
	}
	return joined
}

// Within returns c with its charges counted within the key that outer returns, such as the
// users of an organization or the routes of a user.
//
//	All(Limit(orgs, org), Limit(users, user).Within(org))
//
// The count of a user within one organization is not the user's count in another. Charges
// within one key are on one server, decided in one atomic step. Requests without an outer key
// share one, as under [Limit].
func (c Classifier) Within(outer Key) Classifier {
	if c.err == nil {
		c.err = outer.validate()
	}
	c.rules = slices.Clone(c.rules)
	for i := range c.rules {
		r := &c.rules[i]
		r.addresses = append(slices.Clip(r.addresses), outer.addresses...)
		r.route = r.route || outer.route
		r.partition = &outer
	}
	return c
}

// NoRefund returns c with its charges exempt from [Options.RefundIf]: they are refunded only
// if the handler did not run. Use it for a limit that counts every request, such as GitHub's
// secondary limit, next to a limit with free 304s. To keep it out of headers, set its policy's
// Hidden:
//
//	All(Limit(core, caller), Limit(secondary, caller).NoRefund())
func (c Classifier) NoRefund() Classifier { return c.flagged(noRefund) }

// CostReported returns c with its charges marked as estimates: the handler
// reports the real cost by [SetCost] or [Options.CostHeader].
func (c Classifier) CostReported() Classifier { return c.flagged(costReported) }

// Mode returns c with its charges made in mode m: [quota.Record] counts and never refuses, and
// [quota.Check] refuses and never counts.
func (c Classifier) Mode(m quota.Mode) Classifier {
	if c.err == nil && !m.Known() {
		c.err = invalid.Errorf("middleware: Classifier.Mode is %d; it must be a constant of package quota, such as Check", m)
	}
	c.rules = slices.Clone(c.rules)
	for i := range c.rules {
		c.rules[i].mode = m
	}
	return c
}

// Marked reports whether charges of c are marked [Classifier.NoRefund] or
// [Classifier.CostReported], or are left to a handler by [InHandler]. The result of Charges does
// not contain that.
func (c Classifier) Marked() bool { return c.marks(noRefund | costReported | inHandler) }

func (c Classifier) flagged(f flags) Classifier {
	c.rules = slices.Clone(c.rules)
	for i := range c.rules {
		c.rules[i].flags |= f
	}
	return c
}

// Charges returns the charges that r makes.
func (c Classifier) Charges(r *http.Request) []throttler.Charge {
	charges := make([]throttler.Charge, 0, len(c.rules))
	for i := range c.rules {
		charges = c.rules[i].appendCharges(charges, r)
	}
	return charges
}

func (rule *rule) appendCharges(charges []throttler.Charge, r *http.Request) []throttler.Charge {
	n := len(charges)
	charges = rule.append(charges, r)
	if rule.mode != quota.Enforce {
		for i := range charges[n:] {
			charges[n+i].Mode = rule.mode
		}
	}
	if rule.partition != nil {
		outer := rule.partition.orUnknown(r)
		for i := range charges[n:] {
			if charges[n+i].Partition = outer; outer == "" {
				charges[n+i].Key = "" // an error, as under Limit
			}
		}
	}
	return charges
}

// checkKeys returns an error if a key of charges is empty: a function that returns it for
// clients without a key would have one count for all of them.
func checkKeys(charges []throttler.Charge) error {
	for i := range charges {
		if c := &charges[i]; c.Key == "" && c.Policy != nil {
			return invalid.Errorf("middleware: the classifier charges policy %q for an empty key, which all clients would share; a key function must return false for a request without a key, or a key that is not empty", c.Policy.Name)
		}
	}
	return nil
}

// marks reports whether some rule carries f.
func (c Classifier) marks(f flags) bool {
	return slices.ContainsFunc(c.rules, func(r rule) bool { return r.flags&f != 0 })
}

// marksEvery reports whether every rule carries f.
func (c Classifier) marksEvery(f flags) bool {
	return !slices.ContainsFunc(c.rules, func(r rule) bool { return r.flags&f == 0 })
}

// least returns the least number of charges that a request makes.
func (c Classifier) least() int {
	n := 0
	for _, r := range c.rules {
		if !r.dynamic && r.flags&inHandler == 0 {
			n++
		}
	}
	return n
}

// sharesPolicy reports whether two rules charge under one policy, with the same marks.
func (c Classifier) sharesPolicy() bool {
	type marked struct {
		name string
		flags
	}
	rules := make(map[marked]int)
	for i, r := range c.rules {
		for _, p := range r.policies {
			if j, again := rules[marked{p.Name, r.flags}]; again && j != i {
				return true
			}
			rules[marked{p.Name, r.flags}] = i
		}
	}
	return false
}

// dynamic reports whether c may make charges under policies that it does not know.
func (c Classifier) dynamic() bool {
	return slices.ContainsFunc(c.rules, func(r rule) bool { return r.dynamic })
}

// limitsTokens reports whether a policy is in another unit than requests.
func (c Classifier) limitsTokens() bool {
	return slices.ContainsFunc(c.rules, func(r rule) bool {
		return slices.ContainsFunc(r.policies, func(p *throttler.Policy) bool { return p != nil && p.Unit != quota.Requests })
	})
}

// validate returns an error if c is known to be invalid.
func (c Classifier) validate() error {
	if c.err != nil {
		return c.err
	}
	if len(c.rules) == 0 {
		return invalid.Errorf("middleware: the classifier has no rules and would limit nothing; use Limit, or do without the middleware")
	}
	byName := make(map[string]*throttler.Policy)
	for _, r := range c.rules {
		for _, p := range r.policies {
			if err := p.Validate(); err != nil {
				return err
			}
			if o := byName[p.Name]; o != nil && !slices.Equal(o.Limits, p.Limits) {
				return invalid.Errorf("middleware: two policies are named %q and have different limits, %v and %v; counts are found by name, so give each its own", p.Name, o.Limits, p.Limits)
			}
			byName[p.Name] = p
		}
	}
	return nil
}
