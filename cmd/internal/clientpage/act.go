package clientpage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/internal/every"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
	"github.com/weir-go/weir/throttler/quota"
)

// lasts are how long an override can last; the first is preset, and the last has no end.
var lasts = []string{"1h", "15m", "8h", "24h", "168h", "no end"}

// dones say what was done, by the name of the action.
var dones = map[string]string{
	"raise":   "The limits are in force.",
	"block":   "The client is blocked.",
	"unblock": "The override is removed; the policy's limits are in force.",
	"reset":   "The count is reset.",
	"stored":  "The change is stored, and is not in force in this process yet. The log, and the policies on the main page, say why.",
}

// maxReason bounds a reason, in bytes.
const maxReason = 200

// action is what an operator asks for.
type action struct {
	name, policy, key, partition, reason string
	override                             policies.Override // to set, of raise and block
}

// parse reads the form of an action. The error says which field is wrong.
func (v *view) parse(r *http.Request) (*action, error) {
	if err := r.ParseForm(); err != nil {
		return nil, fmt.Errorf("the form can't be read: %w", err)
	}
	f := r.PostForm
	a := &action{name: f.Get("action"), policy: f.Get("policy"), key: operator.Key(f.Get("key")), partition: operator.Key(f.Get("within")), reason: strings.TrimSpace(f.Get("reason"))}
	switch {
	case !slices.Contains([]string{"raise", "block", "unblock", "reset"}, a.name):
		return nil, fmt.Errorf("action is %q; it must be raise, block, unblock or reset", a.name)
	case f.Get("key") == "":
		return nil, errors.New("key is empty; it must be the key as the program charges it, such as ip:203.0.113.7")
	case a.reason == "":
		return nil, errors.New("the reason is empty; it must say why, for the next operator")
	case len(a.reason) > maxReason:
		return nil, fmt.Errorf("the reason has %d bytes; it must have at most %d", len(a.reason), maxReason)
	case a.name == "raise" && strings.TrimSpace(f.Get("limits")) == "":
		return nil, errors.New("the limits are empty; they must be as 5000 per 1h, with commas between them")
	}
	a.override = policies.Override{Policy: a.policy, Key: a.key, Owner: v.Operator, Reason: a.reason, Blocked: a.name == "block"}
	if a.name == "raise" {
		for text := range strings.SplitSeq(f.Get("limits"), ",") {
			l, err := quota.ParseLimit(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			a.override.Limits = append(a.override.Limits, l)
		}
	}
	if last := f.Get("for"); last != lasts[len(lasts)-1] && (a.name == "raise" || a.name == "block") {
		d, err := time.ParseDuration(last)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("the end is %q; it must be a duration above zero, such as 1h, or %q", last, lasts[len(lasts)-1])
		}
		a.override.Until = time.Now().Add(d).UTC().Truncate(time.Second)
	}
	return a, nil
}

// act does what a form asks for. It returns a key of dones.
func (v *view) act(r *http.Request) (done string, err error) {
	a, err := v.parse(r)
	if err != nil {
		return "", err
	}
	c := v.page.counts()
	if c == nil {
		return "", errStore{errors.New(noConfiguration)}
	}
	a.policy = c.Service.PolicyName(a.policy)
	a.override.Policy = a.policy
	if a.name == "reset" {
		done, err = a.name, v.reset(r.Context(), c, a)
	} else {
		done, err = v.change(r.Context(), c, a)
	}
	log := v.page.Log.With("operator", v.Operator, "action", a.name, "policy", a.policy, "key", v.page.Label(a.key), "reason", a.reason, "address", r.RemoteAddr)
	if err != nil {
		log.Warn("operators: an action failed", "error", err)
		return "", err
	}
	if a.name == "raise" {
		log = log.With("limits", operator.LimitTexts(a.override.Limits))
	}
	if !a.override.Until.IsZero() {
		log = log.With("until", a.override.Until)
	}
	log.Warn("operators: done") // a line at any level
	return done, nil
}

// reset forgets the units that a key has used.
func (v *view) reset(ctx context.Context, c *operator.Counts, a *action) error {
	matches, err := c.Service.Key([]string{a.policy}, a.key)
	if err != nil {
		return err
	}
	matches[0].Partition = a.partition
	rows, failed := c.ShowAll(ctx, matches)
	counted := failed > 0
	for i := range rows {
		counted = counted || rows[i].IsCounted()
	}
	if !counted {
		err := c.UnlessMeant(ctx, matches, rows, a.key)
		if err != nil || matches[0].Level != consistency.Synced { // otherwise other processes may have the count
			return cmp.Or(err, fmt.Errorf("nothing is counted for %s under %s", operator.Printable(a.key), a.policy))
		}
	}
	return v.page.Stack.Throttler.Reset(ctx, throttler.Charge{Policy: matches[0].Policy, Key: a.key, Partition: a.partition})
}

// change writes an override, or removes it, and waits until that is in force.
func (v *view) change(ctx context.Context, c *operator.Counts, a *action) (done string, err error) {
	store := v.page.store
	if store == nil {
		return "", errors.New(v.page.NoStore)
	}
	stored, err := store.FindPolicy(ctx, a.policy)
	if err != nil && !errors.Is(err, quota.ErrInvalid) {
		return "", errStore{err}
	}
	if err := checkTarget(ctx, c, a, stored != nil || err != nil); err != nil {
		return "", err
	}
	before, err := store.Find(ctx, a.policy, a.key)
	if err != nil && !errors.Is(err, quota.ErrInvalid) {
		return "", errStore{err}
	}
	change := redispolicies.Change{Override: []policies.Override{a.override}}
	if before != nil {
		change.Override[0].ParentKey = before.ParentKey
	}
	if a.name == "unblock" {
		switch {
		case before == nil && err == nil:
			return "", fmt.Errorf("policy %q has no override for %s that could be removed", a.policy, operator.Printable(a.key))
		case before != nil && before.ParentKey != "":
			change.Override = []policies.Override{{Policy: a.policy, Key: a.key, ParentKey: before.ParentKey, Owner: before.Owner, Reason: before.Reason}}
		default:
			change = redispolicies.Change{RemoveOverrides: []policies.Override{{Policy: a.policy, Key: a.key}}}
		}
	} else if err := change.Override[0].Validate(); err != nil {
		return "", err
	}
	if _, err := store.Write(ctx, change); err != nil {
		if errors.Is(err, quota.ErrInvalid) {
			return "", err
		}
		return "", errStore{err}
	}
	want := before
	if a.name != "unblock" {
		want = &change.Override[0]
	}
	if !v.inForce(ctx, c, want, a) {
		return "stored", nil
	}
	return a.name, nil
}

// checkTarget returns why an override would have no effect, or nil: the policy or the key must be
// another.
func checkTarget(ctx context.Context, c *operator.Counts, a *action, stored bool) error {
	if err := operator.CheckTarget(c.Service, a.policy, a.key, stored); err != nil {
		return err
	}
	matches, err := c.Service.Key([]string{a.policy}, a.key)
	if err != nil || c.Service.HasDescriptors(a.policy) {
		return nil // checked above, or a policy that is stored alone
	}
	rows, _ := c.ShowAll(ctx, matches)
	if err := c.UnlessMeant(ctx, matches, rows, a.key); err != nil {
		return err
	}
	if m := operator.MeantBy(a.key); m.Right != "" && strings.HasPrefix(a.key, "ip:") { // these programs charge a /64
		return fmt.Errorf("%s is no key that is charged; did you mean %s? It is charged for each address of it", operator.Printable(a.key), m.Right)
	}
	return nil
}

// The wait for a change.
const (
	waitStep = 20 * time.Millisecond
	maxWait  = 5 * time.Second
)

// inForce puts an override in force here, or ends it for unblock. It returns false if that takes too
// long.
func (v *view) inForce(ctx context.Context, c *operator.Counts, o *policies.Override, a *action) bool {
	matches, err := c.Service.Key([]string{a.policy}, a.key)
	if err != nil || o == nil {
		return true // the policy is stored in Redis alone
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	for {
		_ = v.page.Stack.RefreshPolicies(ctx) // an error is warned of, and tried again
		_, now, err := c.Resolve(ctx, &matches[0])
		found := err == nil && now != nil && operator.Holds(now) == operator.Holds(o) && now.Until.Equal(o.Until) && now.Reason == o.Reason && now.Owner == o.Owner
		if found == (a.name != "unblock") {
			return true
		}
		if !every.Wait(ctx, waitStep) {
			return false
		}
	}
}
