package main

import (
	"crypto/tls"
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
	key     []byte      // nil with TLS alone
	tls     *tls.Config // of both ends; nil without TLS
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
	f := v.fields("self", "listen", "members", "epoch", "key_file", "tls", "refresh")
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
	s.readSecrets(f["key_file"], f["tls"])
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

// readSecrets reads what members know each other by.
func (s *sharesConfig) readSecrets(key, certificates value) {
	if s.tls = readTLS(certificates); s.tls != nil {
		if len(s.tls.Certificates) == 0 || s.tls.RootCAs == nil {
			certificates.problem("%s has no ca_file, cert_file and key_file; members need all three, because each is a server and a client", certificates.name())
		}
		s.tls.ClientCAs, s.tls.ClientAuth = s.tls.RootCAs, tls.RequireAndVerifyClientCert
	}
	mustBe := fmt.Sprintf("a file with %d bytes or more that all members share, such as from openssl rand -hex 32", shares.MinKeyBytes)
	switch {
	case key.missing() && s.tls != nil:
	case key.missing():
		key.wrong(mustBe + "; or there must be tls")
	default:
		if content, ok := key.file(mustBe); ok {
			if s.key = shares.TrimKey(content); len(s.key) < shares.MinKeyBytes {
				key.problem("%s has a key of %d bytes; it must be %s", key.name(), len(s.key), mustBe)
			}
		}
	}
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
