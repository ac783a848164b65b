package config

import (
	"cmp"
	"time"

	"github.com/weir-go/weir/local/shares"
)

// sharesKeys are this process, and the processes that it divides the quotas with.
type sharesKeys struct {
	Self    Address       `yaml:",required"` // as the others know it
	Listen  ListenAddress // Self if left out
	Members []Address     `yaml:",required" is:"a list of the members' addresses, such as [127.0.0.1:9001, 127.0.0.1:9002]"`
	Epoch   uint64        // 1 if left out
	KeyFile file          `yaml:",required" is:"a file with a key that all members share, such as from openssl rand -hex 32"`
	Refresh time.Duration

	key []byte
}

// list returns the list of the members. This process need not be on it: then it holds no
// shares until it is on a list.
func (s *sharesKeys) list() shares.List {
	return shares.List{Epoch: max(1, s.Epoch), Members: texts(s.Members)}
}

func (s *sharesKeys) check(r *reader, p *place) {
	s.Listen = cmp.Or(s.Listen, ListenAddress(s.Self))
	r.distinct(p.at("members"), len(s.Members), func(i int) string { return string(s.Members[i]) }, "members must differ")
	if len(s.Members) > shares.MaxMembers {
		r.problem(p.at("members"), "%s has %d addresses; it may have %d", p.at("members"), len(s.Members), shares.MaxMembers)
	}
	r.within(p.at("refresh"), s.Refresh, 10*time.Millisecond, time.Hour)
	at := p.at("key_file")
	s.key = shares.TrimKey(s.KeyFile.content)
	if s.KeyFile.content != nil && len(s.key) < shares.MinKeyBytes {
		r.problem(at, "%s has a key of %d bytes; it must have %d or more, such as from openssl rand -hex 32", at, len(s.key), shares.MinKeyBytes)
	}
}
