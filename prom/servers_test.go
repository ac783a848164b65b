package weirprom

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/observe"
)

// A node that left its cluster goes; the servers of an idle process stay.
func TestForgottenServers(t *testing.T) {
	s := servers{max: 10}
	check := func(shard, name string, ago time.Duration) {
		s.checked(observe.Checked{Backend: "redisbackend", Shard: shard, Server: name, Open: true})
		s.all[serverKey{"redisbackend", shard, name}].at = time.Now().Add(-ago)
	}
	check("a", "left", forgotten+time.Second)
	check("a", "slow", forgotten-time.Second)
	check("a", "node", 0)
	check("idle", "node", 24*time.Hour)
	s.forget()
	var left []string
	for key := range s.all {
		left = append(left, key.shard+" "+key.server)
	}
	slices.Sort(left)
	if want := []string{"a node", "a slow", "idle node"}; !slices.Equal(left, want) {
		t.Errorf("left are %q; want %q", left, want)
	}
}
