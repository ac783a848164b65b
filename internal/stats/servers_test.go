package stats

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/observe"
)

// A node that left its cluster is forgotten. The servers of an idle process are kept.
func TestForgottenServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Servers{Max: 10}
		check := func(shard, name string) {
			s.Checked(observe.Checked{Backend: "redisbackend", Shard: shard, Server: name, Open: true})
		}
		check("idle", "node")
		time.Sleep(24 * time.Hour)
		check("a", "left")
		time.Sleep(2 * time.Second)
		check("a", "slow")
		time.Sleep(forgotten - time.Second)
		check("a", "node")
		var left []string
		s.ForEach(func(name ServerName, _ *Server) { left = append(left, name.Shard+" "+name.Server) })
		slices.Sort(left)
		if want := []string{"a node", "a slow", "idle node"}; !slices.Equal(left, want) {
			t.Errorf("left are %q; want %q", left, want)
		}
	})
}
