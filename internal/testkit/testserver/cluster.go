package testserver

import (
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"
)

// RedisCluster is a Redis Cluster, which divides the slots evenly among its primaries.
type RedisCluster struct {
	Nodes []*RedisServer // the primaries at the start, then their replicas, in the same order
	Addrs []string       // of Nodes
}

// Cluster starts a Redis Cluster that ends with the test, with so many primaries, and so many
// replicas of each. It returns when all nodes agree that it is up. Arguments of redis-server
// may follow, such as "--cluster-node-timeout", "1000".
func Cluster(t testing.TB, primaries, replicas int, extraArgs ...string) *RedisCluster {
	t.Helper()
	c, err := StartCluster(primaries, replicas, extraArgs...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// StartCluster is like Cluster, for use outside tests. The caller must call Stop.
func StartCluster(primaries, replicas int, extraArgs ...string) (*RedisCluster, error) {
	c := new(RedisCluster)
	if err := c.start(primaries, replicas, extraArgs); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *RedisCluster) start(primaries, replicas int, extraArgs []string) error {
	const slots = 16384
	var meet string // the first node
	for i := range primaries * (1 + replicas) {
		bus, err := FindAddr() // by default it is the port plus 10,000, which may not exist
		if err != nil {
			return err
		}
		_, busPort, _ := net.SplitHostPort(bus)
		node, err := StartRedis(append([]string{"--cluster-enabled", "yes", "--cluster-port", busPort}, extraArgs...)...)
		if err != nil {
			return err
		}
		c.Nodes, c.Addrs = append(c.Nodes, node), append(c.Addrs, node.Addr)
		// Nodes that meet with equal epochs change them. A replica that has not heard of its
		// primary's could never replace it: the others don't vote for an old epoch.
		if _, err := ask(node.Addr, "CLUSTER SET-CONFIG-EPOCH "+strconv.Itoa(i+1), "+OK"); err != nil {
			return err
		}
		if i == 0 {
			host, port, _ := net.SplitHostPort(node.Addr)
			meet = "CLUSTER MEET " + host + " " + port + " " + busPort
		}
		if i < primaries {
			first, last := strconv.Itoa(slots*i/primaries), strconv.Itoa(slots*(i+1)/primaries-1)
			if _, err := ask(node.Addr, "CLUSTER ADDSLOTSRANGE "+first+" "+last, "+OK"); err != nil {
				return err
			}
		}
	}
	if err := c.meet(meet); err != nil {
		return err
	}
	for i := range primaries * replicas {
		primary, replica := c.Nodes[i%primaries], c.Nodes[primaries+i]
		id, err := ask(primary.Addr, "CLUSTER MYID", "$40\r\n")
		if err != nil {
			return err
		}
		// The node learns the id when it hears of the primary's slots.
		if err := await(replica.Addr, "CLUSTER REPLICATE "+id, "+", func(ok string) bool { return ok == "OK" }); err != nil {
			return fmt.Errorf("replica %w", err)
		}
	}
	for i, addr := range c.Addrs {
		if err := await(addr, "CLUSTER INFO", "cluster_state:", func(state string) bool { return state == "ok" }); err != nil {
			return fmt.Errorf("node %w", err)
		}
		if i >= primaries {
			if err := await(addr, "INFO replication", "master_link_status:", func(status string) bool { return status == "up" }); err != nil {
				return fmt.Errorf("replica %w", err)
			}
		}
	}
	// A client that knows one node asks it for the others.
	return await(c.Addrs[0], "CLUSTER INFO", "cluster_slots_ok:", func(n string) bool { return n == strconv.Itoa(slots) })
}

// meet introduces all nodes to each other. On a busy machine a node may forget a node that it
// was about to meet, so the command is repeated.
func (c *RedisCluster) meet(command string) error {
	size := strconv.Itoa(len(c.Nodes))
	deadline := time.Now().Add(agreeTimeout)
	for try := 0; ; try++ {
		joined := 0
		for i, addr := range c.Addrs {
			n, err := ask(addr, "CLUSTER INFO", "cluster_known_nodes:")
			if err != nil {
				return err
			}
			if n == size {
				joined++
			} else if i > 0 && try%50 == 0 { // once a second
				if _, err := ask(addr, command, "+OK"); err != nil {
					return err
				}
			}
		}
		if joined == len(c.Nodes) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of the cluster's nodes %v know all others after %v", joined, c.Addrs, agreeTimeout)
		}
		time.Sleep(10 * pollEvery)
	}
}

// Failover has replica, one of Nodes, replace its primary, which is alive. It returns when
// that has happened. A busy cluster gives up after 5 s, so Failover repeats the command.
func (c *RedisCluster) Failover(replica *RedisServer) error {
	const givesUp = 6 * time.Second
	deadline := time.Now().Add(6 * givesUp)
	var request time.Time
	for {
		role, err := ask(replica.Addr, "INFO replication", "role:")
		if err != nil || role == "master" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s is no primary %v after the first CLUSTER FAILOVER", replica.Addr, 6*givesUp)
		}
		if time.Since(request) > givesUp {
			if _, err := ask(replica.Addr, "CLUSTER FAILOVER", "+OK"); err != nil {
				return err
			}
			request = time.Now()
		}
		time.Sleep(pollEvery)
	}
}

// Stop kills the nodes and removes their files.
func (c *RedisCluster) Stop() {
	for _, node := range c.Nodes {
		node.Stop()
	}
}
