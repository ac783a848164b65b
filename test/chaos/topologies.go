package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/testkit/testserver"
	"github.com/weir-go/weir/test/chaos/internal/history"
)

// Names of the shards with clients that find the primary themselves. Decisions of a Cluster
// are judged by the part of the slots that has their keys: "c0" is the first.
const (
	sentinelName = "s"
	clusterName  = "c"

	clusterParts = 3
	slots        = 16384
)

// missed is how long a primary must be silent before it is replaced: longer than a busy
// machine stalls.
const missed = 3 * time.Second

// watched is a primary and a replica that are watched by Sentinels.
type watched struct {
	sentinels        *testserver.Sentinels
	primary, replica *testserver.RedisServer
	planned          int // failovers
}

func startWatched() (*watched, error) {
	w := new(watched)
	var err error
	if w.primary, err = testserver.StartRedis(noSyncFile...); err != nil {
		return w, err
	}
	if w.replica, err = testserver.StartRedis(noSyncFile...); err != nil {
		return w, err
	}
	if err := follow(w.replica, w.primary); err != nil {
		return w, err
	}
	// Twice the failover-timeout has to pass between two failovers.
	w.sentinels, err = testserver.StartSentinels(sentinelName, w.primary, 1, missed, "sentinel failover-timeout "+sentinelName+" 1500")
	return w, err
}

func (w *watched) stop() {
	if w.sentinels != nil {
		w.sentinels.Stop()
	}
	for _, s := range []*testserver.RedisServer{w.primary, w.replica} {
		if s != nil {
			s.Stop()
		}
	}
}

// unplanned reports whether the Sentinels have promoted a replica without a plan's order.
func (w *watched) unplanned() bool {
	return strings.Count(w.sentinels.Said(), "+switch-master") > w.planned*len(w.sentinels.Addrs)
}

// awaitReplica returns when all Sentinels could promote the replica.
func (w *watched) awaitReplica() error {
	if isPrimary(w.replica) && !isPrimary(w.primary) { // unplanned
		w.primary, w.replica = w.replica, w.primary
	}
	for _, addr := range w.sentinels.Addrs {
		c := redis.NewSentinelClient(&redis.Options{Addr: addr})
		err := eventually("the Sentinel at "+addr+" sees the replica", func() bool {
			replicas, err := c.Replicas(context.Background(), sentinelName).Result()
			return err == nil && len(replicas) == 1 && replicas[0]["flags"] == "slave" && replicas[0]["master-link-status"] == "ok" &&
				replicas[0]["ip"]+":"+replicas[0]["port"] == w.replica.Addr
		})
		_ = c.Close()
		if err != nil {
			return fmt.Errorf("%w; %s", err, w.sentinels.Said())
		}
	}
	return nil
}

// sentinelKill kills the primary, and the Sentinels promote the replica. Charges that the
// replica lacked are lost.
func sentinelKill(s *stack, _ *rand.Rand, _ time.Duration) (*fault, error) {
	w := s.watched
	if err := w.awaitReplica(); err != nil {
		return nil, err
	}
	f := &fault{text: "SIGKILL of the primary of " + sentinelName + ", Sentinels promote the replica", processes: s.allProcesses(), shards: s.judged(sentinelName), lost: sentinelName}
	w.planned++
	f, err := during(f, func() error {
		w.primary.Kill()
		if _, err := w.replica.AwaitPrimary(); err != nil {
			return fmt.Errorf("%w; %s", err, w.sentinels.Said())
		}
		return nil
	})
	if err == nil {
		w.primary, w.replica = w.replica, w.primary
		err = w.replica.Restart()
	}
	if err == nil {
		err = follow(w.replica, w.primary)
	}
	return f, err
}

// heardOf is how long a process may still charge the old primary after a planned failover.
const heardOf = 300 * time.Millisecond

// sentinelFailover has the Sentinels promote the replica of a live primary. The old primary
// continues to accept charges, which are lost, until processes stop sending them.
func sentinelFailover(s *stack, _ *rand.Rand, _ time.Duration) (*fault, error) {
	w := s.watched
	if err := w.awaitReplica(); err != nil {
		return nil, err
	}
	f := &fault{text: "SENTINEL FAILOVER of " + sentinelName, processes: s.allProcesses(), shards: s.judged(sentinelName), lost: sentinelName}
	w.planned++
	f, err := during(f, func() error {
		if err := eventually("SENTINEL FAILOVER", func() bool { return w.sentinels.Failover() == nil }); err != nil {
			return err
		}
		_, err := w.replica.AwaitPrimary()
		time.Sleep(heardOf)
		return err
	})
	if err == nil {
		w.primary, w.replica = w.replica, w.primary
		err = follow(w.replica, w.primary) // before the Sentinels have it follow, seconds later
	}
	return f, err
}

// clustered is a Cluster, by parts of its slots.
type clustered struct {
	cluster *testserver.RedisCluster
	parts   [clusterParts]part
}

// part is a part of the slots.
type part struct {
	primary, replica *testserver.RedisServer
	unplanned        bool // an unplanned failover was seen
}

// find finds which of the two servers is the primary.
func (p *part) find() {
	if isPrimary(p.replica) && !isPrimary(p.primary) {
		p.primary, p.replica, p.unplanned = p.replica, p.primary, true
	}
}

func startClustered() (*clustered, error) {
	c := new(clustered)
	args := append([]string{"--cluster-node-timeout", fmt.Sprint(missed.Milliseconds()), "--cluster-require-full-coverage", "no"}, noSyncFile...)
	var err error
	if c.cluster, err = testserver.StartCluster(clusterParts, 1, args...); err != nil {
		return c, err
	}
	for i := range c.parts {
		c.parts[i].primary, c.parts[i].replica = c.cluster.Nodes[i], c.cluster.Nodes[clusterParts+i]
	}
	return c, nil
}

func (c *clustered) stop() {
	if c.cluster != nil {
		c.cluster.Stop()
	}
}

// partOf returns the name of the part that contains a Redis key.
func (c *clustered) partOf(key string) (string, error) {
	admin := redis.NewClient(&redis.Options{Addr: c.cluster.Addrs[0]})
	defer admin.Close()
	slot, err := admin.ClusterKeySlot(context.Background(), key).Result()
	for i := range clusterParts { // as StartCluster divides them
		if int(slot) < slots*(i+1)/clusterParts {
			return partName(i), err
		}
	}
	return "", fmt.Errorf("slot %d of %d: %w", slot, slots, err)
}

func partName(i int) string { return fmt.Sprint(clusterName, i) }

// awaitReplica returns when the replica of part i follows, and has the primary's data.
func (c *clustered) awaitReplica(i int) error {
	p := &c.parts[i]
	p.find()
	admin := redis.NewClient(&redis.Options{Addr: p.replica.Addr})
	defer admin.Close()
	_, port, _ := net.SplitHostPort(p.primary.Addr)
	return eventually("the replica of "+partName(i)+" follows", func() bool {
		info, err := admin.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "master_port:"+port+"\r\n") && strings.Contains(info, "master_link_status:up")
	})
}

func (s *stack) clusterFault(random *rand.Rand, text string, harm func(i int) error) (*fault, error) {
	c, i := s.clustered, random.IntN(clusterParts)
	if err := c.awaitReplica(i); err != nil {
		return nil, err
	}
	f, err := during(&fault{text: text + partName(i), processes: s.allProcesses(), shards: s.judged(partName(i))}, func() error { return harm(i) })
	p := &c.parts[i]
	p.primary, p.replica = p.replica, p.primary
	return f, err
}

// clusterKill kills a primary, and its replica takes over. Charges that it lacked are lost.
func clusterKill(s *stack, random *rand.Rand, _ time.Duration) (*fault, error) {
	var killed *testserver.RedisServer
	var part string
	f, err := s.clusterFault(random, "SIGKILL of the primary of ", func(i int) error {
		part = partName(i)
		killed = s.clustered.parts[i].primary
		killed.Kill()
		_, err := s.clustered.parts[i].replica.AwaitPrimary()
		return err
	})
	if err != nil {
		return f, err
	}
	f.lost = part
	return f, killed.Restart() // it knows the Cluster, and becomes a replica
}

// clusterFailover runs CLUSTER FAILOVER, which loses nothing.
func clusterFailover(s *stack, random *rand.Rand, _ time.Duration) (*fault, error) {
	return s.clusterFault(random, "CLUSTER FAILOVER of ", func(i int) error {
		return s.clustered.cluster.Failover(s.clustered.parts[i].replica)
	})
}

// judged returns the shard if the load has keys there. Otherwise, no decision can show that it
// works again.
func (s *stack) judged(name string) []string {
	return slices.DeleteFunc(s.allShards(), func(shard string) bool { return shard != name })
}

// isPrimary reports whether a server says that it is a primary.
func isPrimary(server *testserver.RedisServer) bool {
	admin := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer admin.Close()
	info, err := admin.Info(context.Background(), "replication").Result()
	return err == nil && strings.Contains(info, "role:master")
}

// unplanned returns the failovers since began that were not planned: the machine stalled for
// longer than missed. Any charge since began may have been lost in them.
func (s *stack) unplanned(began int64) (faults []*fault) {
	add := func(name string) {
		faults = append(faults, &fault{text: "the machine stalled, and a replica of " + name + " was promoted", from: began, to: history.Monotonic(), lost: name})
	}
	if s.watched.unplanned() {
		add(sentinelName)
	}
	for i := range s.clustered.parts {
		p := &s.clustered.parts[i]
		if p.find(); p.unplanned {
			add(partName(i))
		}
	}
	return faults
}

func eventually(goal string, reached func() bool) error {
	for end := time.Now().Add(30 * time.Second); !reached(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("waited 30 s for this: " + goal)
		}
	}
	return nil
}
