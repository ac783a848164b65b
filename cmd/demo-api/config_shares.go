package main

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/fleet/shares"
	"github.com/weir-go/weir/throttler"
)

// sharesConfig is this process, and the others that it divides the quotas with.
type sharesConfig struct {
	self    string // as the others know it
	listen  string
	list    shares.List
	key     []byte
	refresh time.Duration
}

const (
	minRefresh = 10 * time.Millisecond
	maxRefresh = time.Hour
)

// readShares reads all that is known of the members.
func (c *backendsConfig) readShares(v value) {
	if v.missing() {
		return
	}
	s := &c.shares
	f := v.fields("self", "listen", "members", "epoch", "key_file", "refresh")
	s.self = f["self"].address(hostNeeded)
	s.listen = s.self
	if v := f["listen"]; !v.missing() {
		s.listen = v.address(hostOptional)
	}
	s.list = readList(f["members"], f["epoch"])
	if v := f["refresh"]; !v.missing() {
		s.refresh = v.duration()
		if s.refresh != 0 && (s.refresh < minRefresh || s.refresh > maxRefresh) {
			v.wrong(fmt.Sprintf("from %v to %v", minRefresh, maxRefresh))
		}
	}
	const mustBe = "a file with a key that all members share, such as from openssl rand -hex 32"
	if content, ok := f["key_file"].file(mustBe); ok {
		if s.key = shares.TrimKey(content); len(s.key) < shares.MinKeyBytes {
			f["key_file"].problem("%s has a key of %d bytes; it must have %d or more, such as from openssl rand -hex 32", f["key_file"].name(), len(s.key), shares.MinKeyBytes)
		}
	}
}

// readList reads the list of the members, which must be valid by itself. This process
// need not be on it: it then holds nothing until a list names it.
func readList(members, epoch value) shares.List {
	const mustBe = "a list of the members' addresses, such as [127.0.0.1:9001, 127.0.0.1:9002]"
	list := shares.List{Epoch: 1}
	if !epoch.missing() {
		list.Epoch = uint64(epoch.whole())
	}
	known := map[string]value{}
	items := members.items(mustBe)
	if len(items) == 0 {
		members.problem("%s is empty; it must be %s", members.name(), mustBe)
	}
	for _, item := range items {
		member := item.address(hostNeeded)
		if first, again := known[member]; again {
			item.problem("%s is %q, as %s is; members must differ", item.name(), member, first.name())
		}
		known[member] = item
		list.Members = append(list.Members, member)
	}
	if len(list.Members) > shares.MaxMembers {
		members.problem("%s has %d addresses; it may have %d", members.name(), len(list.Members), shares.MaxMembers)
	}
	return list
}

// readUndividable adds the policies that cannot be divided. Default policies become
// token buckets.
func (c *config) readUndividable(policies, dryRuns, list value) {
	if c.backends.serving != sharesName || list.r.failed() {
		return
	}
	members := len(c.backends.shares.list.Members)
	check := func(p *throttler.Policy, at value) {
		for i := range p.Limits {
			if why := shares.Unsupported(&p.Limits[i], members); why != "" {
				at.problem("policy %q: limit %d is %v, and the backend is shares; %s", p.Name, i, p.Limits[i], why)
			}
		}
	}
	given := map[string]value{}
	for _, e := range policies.entries(policiesMustBe) {
		given[e.key] = e.value
	}
	for name, p := range c.policies {
		at, ok := given[name]
		if !ok {
			at = list
			for i := range p.Limits {
				p.Limits[i].Algorithm = throttler.TokenBucket
			}
		}
		check(p, at)
	}
	for _, e := range dryRuns.entries(policiesMustBe) {
		check(c.dryRuns[e.key], e.value)
	}
}
