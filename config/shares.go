package config

import (
	"cmp"
	"time"

	"github.com/weir-go/weir/local/shares"
)

// sharesKeys are this process, and the processes that it divides the quotas with.
type sharesKeys struct {
	Self    Address       // as the others know it
	Listen  ListenAddress // Self if left out
	Members []Address
	Epoch   integer // 1 if left out
	KeyFile file    `yaml:"key_file"`
	Refresh duration

	key []byte
}

// list returns the list of the members. This process need not be on it: then it holds no
// shares until it is on a list.
func (s *sharesKeys) list() shares.List {
	return shares.List{Epoch: uint64(max(1, s.Epoch)), Members: texts(s.Members)}
}

// shares checks and completes the key shares.
func (c *Config) shares(d *document) {
	s, p := c.keys.Shares, path{"shares"}
	if s == nil || d.unread["shares"] {
		return
	}
	s.Listen = cmp.Or(s.Listen, ListenAddress(s.Self))
	if s.Self == "" {
		d.mustBe(p.child("self"), addressMustBe)
	}
	if len(s.Members) == 0 {
		d.mustBe(p.child("members"), "a list of the members' addresses, such as [127.0.0.1:9001, 127.0.0.1:9002]")
	}
	d.distinct(p.child("members"), "members must differ")
	if len(s.Members) > shares.MaxMembers {
		d.problem(p.child("members"), "%s has %d addresses; it may have %d", p.child("members"), len(s.Members), shares.MaxMembers)
	}
	d.checkRange(p.child("refresh"), time.Duration(s.Refresh), 10*time.Millisecond, time.Hour)
	const right = "a file with a key that all members share, such as from openssl rand -hex 32"
	place := p.child("key_file")
	if d.read(&s.KeyFile, place, right); s.KeyFile.name == "" {
		d.mustBe(place, right)
	}
	s.key = shares.TrimKey(s.KeyFile.content)
	if s.KeyFile.content != nil && len(s.key) < shares.MinKeyBytes {
		d.problem(place, "%s has a key of %d bytes; it must have %d or more, such as from openssl rand -hex 32", place, len(s.key), shares.MinKeyBytes)
	}
}
