package redisbackend

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// maxLag is how old what a replica shows may be. It is more than two checks apart,
// because a replica that is busy but well has what its primary had at the check
// before the last.
const maxLag = 3 * time.Second

// replication is what a server says of itself in INFO replication.
type replication struct {
	role    string // "master" or "slave"; "" if it does not say
	linkUp  bool   // of a replica to its primary
	syncing bool

	// history names a sequence of writes and offset is the place in it that the server
	// has reached. A replica has its primary's history, and so have its own replicas.
	// A server that is promoted, or that restarts, begins another.
	history string
	offset  int64
}

// parseReplication reads the reply to INFO replication. What is missing or no number
// leaves a replication that is not current.
func parseReplication(info string) replication {
	r := replication{offset: -1}
	primaryOffset, replicaOffset := int64(-1), int64(-1)
	for line := range strings.SplitSeq(info, "\n") {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\r"), ":")
		switch name {
		case "role":
			r.role = strings.Clone(value)
		case "master_link_status":
			r.linkUp = value == "up"
		case "master_sync_in_progress":
			r.syncing = value != "0"
		case "master_replid":
			r.history = strings.Clone(value)
		case "master_repl_offset":
			primaryOffset = parseOffset(value)
		case "slave_repl_offset":
			replicaOffset = parseOffset(value)
		}
	}
	if r.role == rolePrimary {
		r.offset = primaryOffset
	} else {
		r.offset = replicaOffset
	}
	return r
}

const (
	rolePrimary = "master"
	roleReplica = "slave"
)

func parseOffset(value string) int64 {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// writes remembers how far the primaries of a shard had come, and when, so that what a
// replica has can be dated. No clock but this process' is compared, and nothing is
// written.
type writes struct {
	mu    sync.Mutex
	marks []mark // oldest first
}

// mark says that a primary had come that far. All that it acknowledged before at is
// within.
type mark struct {
	history string
	offset  int64
	at      time.Time
}

// add adds what a primary replied to a question that was sent at the time at.
func (w *writes) add(r replication, at time.Time) {
	if r.role != rolePrimary || r.offset < 0 || r.history == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	old := 0
	for old < len(w.marks) && at.Sub(w.marks[old].at) > maxLag {
		old++
	}
	w.marks = append(w.marks[:0], w.marks[old:]...)
	w.marks = append(w.marks, mark{r.history, r.offset, at})
}

// lag returns for how long r, which a server reported after now, may not have followed; 0
// and an error if it is no replica that is known to be at most maxLag behind.
func (w *writes) lag(r replication, now time.Time) (time.Duration, error) {
	if err := r.problem(); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known := false
	for i := len(w.marks) - 1; i >= 0; i-- {
		m := &w.marks[i]
		if m.history != r.history {
			continue
		}
		known = true
		if r.role == rolePrimary {
			return 0, nil // the primary: Sentinel knows no replica
		}
		if lag := now.Sub(m.at); m.offset <= r.offset && lag <= maxLag {
			return lag, nil
		}
	}
	switch {
	case len(w.marks) == 0 || now.Sub(w.marks[len(w.marks)-1].at) > maxLag:
		return 0, cutError("cannot be compared: its primary does not answer")
	case !known && r.role == rolePrimary:
		return 0, cutError("has become a primary")
	case !known:
		return 0, cutError("follows another primary")
	}
	return 0, cutError(fmt.Sprintf("is more than %v behind", maxLag))
}

// problem returns why a server that says this of itself is not asked, or nil.
func (r *replication) problem() error {
	switch {
	case r.role != roleReplica && r.role != rolePrimary:
		return cutError("does not report its role")
	case r.syncing:
		return cutError("is being synchronized")
	case r.role == roleReplica && !r.linkUp:
		return cutError("has lost its primary")
	}
	return nil
}

// cutError says why a replica is not asked.
type cutError string

func (e cutError) Error() string { return "the replica " + string(e) }

// errDemoted is the error of a peek that no primary can answer: its last check found
// the server to be a replica, and nothing else is known of it.
var errDemoted = errors.New("the primary has become a replica")

// proves reports whether a read of the replica that b sends to comes with a proof that
// what it shows is current: between two checks the replica may lose its primary, or be
// promoted, and a client that finds replicas by Sentinel speaks to another one by each
// connection. In a cluster the proof would come from another node than the counts, so
// the last check has to do.
func (b *batcher) proves() bool {
	_, ok := b.client.UniversalClient.(*redis.Client)
	return ok
}
