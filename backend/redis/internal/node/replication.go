package node

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// MaxLag is the greatest age of the counts that a replica may show. It is longer than two
// intervals between checks, because a busy replica may only have the writes that its primary
// had at the check before the last.
const MaxLag = 3 * time.Second

// replication is a server's report of itself in INFO replication.
type replication struct {
	role    string // "master" or "slave"; "" if not reported
	linkUp  bool   // of a replica to its primary
	syncing bool

	// history names a sequence of writes, and offset is the place in it that the server has
	// reached. A replica has its primary's history, and so have its own replicas. A server
	// that is promoted, or that restarts, begins a new history.
	history string
	offset  int64
}

// parseReplication parses the reply to INFO replication. If a field is missing or malformed,
// the result is not current.
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

// writes remembers the offsets of the primaries of a shard, and their times, so that a
// replica's offset can be dated. It compares times of this process' clock alone, and writes
// nothing to the servers.
type writes struct {
	mu    sync.Mutex
	marks []mark // oldest first
}

// mark is an offset that a primary had reached. It includes all writes that the primary
// acknowledged before the instant.
type mark struct {
	history string
	offset  int64
	instant time.Time
}

// add adds the reply of a primary to a check that was sent at that instant.
func (w *writes) add(r replication, instant time.Time) {
	if r.role != rolePrimary || r.offset < 0 || r.history == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	old := 0
	for old < len(w.marks) && instant.Sub(w.marks[old].instant) > MaxLag {
		old++
	}
	w.marks = append(w.marks[:0], w.marks[old:]...)
	w.marks = append(w.marks, mark{r.history, r.offset, instant})
}

// lag returns how long a server that reported r after now may be behind, or 0 and an error if
// the server is not known to be at most MaxLag behind.
func (w *writes) lag(r replication, now time.Time) (time.Duration, error) {
	if err := r.problem(); err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	found := false
	for i := len(w.marks) - 1; i >= 0; i-- {
		m := &w.marks[i]
		if m.history != r.history {
			continue
		}
		found = true
		if r.role == rolePrimary {
			return 0, nil // it is the primary: Sentinel knows no replica
		}
		if lag := now.Sub(m.instant); m.offset <= r.offset && lag <= MaxLag {
			return lag, nil
		}
	}
	switch {
	case len(w.marks) == 0 || now.Sub(w.marks[len(w.marks)-1].instant) > MaxLag:
		return 0, cutError("cannot be compared: its primary does not answer")
	case !found && r.role == rolePrimary:
		return 0, cutError("has become a primary")
	case !found:
		return 0, cutError("follows another primary")
	}
	return 0, cutError(fmt.Sprintf("is more than %v behind", MaxLag))
}

// problem returns why a server that reports r must not serve peeks, or nil.
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
