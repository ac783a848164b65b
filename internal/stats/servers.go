package stats

import (
	"sync"
	"time"

	"github.com/weir-go/weir/observe"
)

// forgotten is when a server is dropped: its shard's others were checked for so long
// and it was not. So goes a node that left a cluster; the servers of a process that is
// idle, and checks none, keep what was last known.
const forgotten = 10 * time.Minute

// Servers is what is known of each server.
type Servers struct {
	Max int              // those that come later are left out
	Now func() time.Time // if nil, time.Now

	mu  sync.Mutex // events are about one a second and server
	all map[ServerName]*Server
}

// ServerName names a server: in Servers, by Labels.
type ServerName struct{ Backend, Shard, Server string }

// Server is what the last Checked of a server said.
type Server struct {
	observe.Checked           // Skew is the last that was known
	Openings        int64     // how often its breaker opened
	Opened          time.Time // since when it is open; zero if it is not
	At              time.Time // of the last Checked
}

// Checked notes what is known of a server.
func (s *Servers) Checked(e observe.Checked) {
	name := ServerName{Label(e.Backend), Label(e.Shard), Label(e.Server)}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.all[name]
	if v == nil {
		if len(s.all) >= s.Max {
			return
		}
		if s.all == nil {
			s.all = make(map[ServerName]*Server)
		}
		v = new(Server)
		s.all[name] = v
	}
	now := time.Now()
	if s.Now != nil {
		now = s.Now()
	}
	switch {
	case !e.Open:
		v.Opened = time.Time{}
	case !v.Open:
		v.Opened = now
		v.Openings++
	}
	if !e.SkewKnown {
		e.Skew, e.SkewKnown = v.Skew, v.SkewKnown
	}
	v.Checked, v.At = e, now
}

// Each calls do with each server that is not forgotten. It must not call s.
func (s *Servers) Each(do func(ServerName, *Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	for name, v := range s.all {
		do(name, v)
	}
}

func (s *Servers) forget() {
	latest := make(map[ServerName]time.Time) // by shard
	for name, v := range s.all {
		name.Server = ""
		if v.At.After(latest[name]) {
			latest[name] = v.At
		}
	}
	for name, v := range s.all {
		if latest[ServerName{Backend: name.Backend, Shard: name.Shard}].Sub(v.At) > forgotten {
			delete(s.all, name)
		}
	}
}
