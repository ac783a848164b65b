package stats

import (
	"sync"
	"time"

	"github.com/weir-go/weir/observe"
)

// forgotten is how long a server is kept while other servers of its shard are checked
// and it is not, such as a node that left a cluster. A process that is idle checks no
// server, and keeps all.
const forgotten = 10 * time.Minute

// Servers contains the last known state of each server.
type Servers struct {
	Max int              // later servers are left out
	Now func() time.Time // if nil, time.Now

	mu     sync.Mutex // events are about one a second and server
	byName map[ServerName]*Server
}

// ServerName names a server. In Servers, each field is a Label.
type ServerName struct{ Backend, Shard, Server string }

// Server is the state of a server after its last Checked.
type Server struct {
	observe.Checked           // with the last known Skew
	Openings        int64     // how often its breaker opened
	Opened          time.Time // when its breaker opened; zero if it is closed
	At              time.Time // time of the last Checked
}

// Checked updates the state of a server.
func (s *Servers) Checked(e observe.Checked) {
	name := ServerName{Label(e.Backend), Label(e.Shard), Label(e.Server)}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.byName[name]
	if v == nil {
		if len(s.byName) >= s.Max {
			return
		}
		if s.byName == nil {
			s.byName = make(map[ServerName]*Server)
		}
		v = new(Server)
		s.byName[name] = v
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

// ForEach calls do with each server that is not forgotten. It must not call s.
func (s *Servers) ForEach(do func(ServerName, *Server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget()
	for name, v := range s.byName {
		do(name, v)
	}
}

func (s *Servers) forget() {
	latest := make(map[ServerName]time.Time) // by shard
	for name, v := range s.byName {
		name.Server = ""
		if v.At.After(latest[name]) {
			latest[name] = v.At
		}
	}
	for name, v := range s.byName {
		if latest[ServerName{Backend: name.Backend, Shard: name.Shard}].Sub(v.At) > forgotten {
			delete(s.byName, name)
		}
	}
}
