package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weir-go/weir/test/chaos/internal/history"
	"github.com/weir-go/weir/throttler"
)

// decision is one decision of a worker.
type decision struct {
	process  int
	peek     bool
	key      int
	shard    string
	call     int64
	returned bool // otherwise its process was killed
	answer
}

// mayHaveCharged reports whether d charged, or may have.
func (d *decision) mayHaveCharged() bool {
	return !d.peek && (!d.returned || d.Fate == history.Unknown || d.charged())
}

func (d *decision) charged() bool {
	return !d.peek && d.returned && d.Fate == history.Answered && d.Allowed && !d.Degraded
}

func (d *decision) failed() bool { return d.returned && d.Fate != history.Answered }

// read returns the decisions in the files of w.
func (w *worker) read(shardOf map[int]string) (decisions []*decision, err error) {
	for _, name := range w.records {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		byID := make(map[int64]*decision)
		for lines := json.NewDecoder(file); err == nil; {
			var r record
			if err = lines.Decode(&r); err != nil {
				break
			}
			if r.Answer != nil {
				byID[r.ID].answer, byID[r.ID].returned = *r.Answer, true
				continue
			}
			byID[r.ID] = &decision{process: w.work.Process, peek: r.Peek, key: r.Key, shard: shardOf[r.Key], call: r.At}
			decisions = append(decisions, byID[r.ID])
		}
		_ = file.Close()
		if !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return decisions, nil
}

// run is the record of a run.
type run struct {
	began     int64 // by history.Monotonic
	beganWall int64 // the same instant, Unix ms
	ended     int64
	decisions []*decision
	faults    []*fault
	used      map[int]int64 // of the exact keys, at the end
}

// Tolerances of the invariants.
const (
	lateness = 50 * time.Millisecond // of an answer after its deadline
	replLag  = time.Second           // charges of this age may be missing in a replica that takes over
)

// verdict is the result of a run.
type verdict struct {
	allowed, refused, peeked int
	unknown, unsent, killed  int
	degraded                 int
	longest                  time.Duration // decision
	latest                   time.Duration // after its deadline, less the time that the machine stalled

	windows, overWindows int   // with charges; with more charges than the quota
	excess, beyond       int64 // units above quotas; of these, the units that no lost count explains

	rows   []row // of the faults
	broken []string
}

// row is the effect of a fault.
type row struct {
	*fault
	failed    int // decisions
	longest   time.Duration
	recovered time.Duration // until the first decision of each process that was hit; negative if one got no decision
	missed    bool          // no process was hit
}

func (v *verdict) breaks(format string, args ...any) {
	if len(v.broken) < 20 {
		v.broken = append(v.broken, fmt.Sprintf(format, args...))
	}
}

// judge checks the invariants.
func (r *run) judge(mayTake time.Duration) *verdict {
	v := new(verdict)
	for _, d := range r.decisions {
		r.count(v, d)
	}
	r.judgeWindows(v)
	r.judgeCounts(v)
	for _, f := range r.faults {
		row := r.judgeFault(f)
		v.rows = append(v.rows, row)
		switch {
		case row.missed:
		case row.recovered < 0:
			v.breaks("after %q, %.1f s into the run, a process that was hit got no decision again", f.text, r.seconds(f.from))
		case row.recovered-r.stalled(f.to, f.to+int64(row.recovered)) > mayTake:
			v.breaks("after %q, %.1f s into the run, it took %v until each process that was hit had a decision; it may take %v", f.text, r.seconds(f.from), row.recovered, mayTake)
		}
	}
	return v
}

// seconds returns how many seconds into the run an instant is.
func (r *run) seconds(t int64) float64 { return time.Duration(t - r.began).Seconds() }

// count counts d, and checks d by itself.
func (r *run) count(v *verdict, d *decision) {
	switch {
	case !d.returned:
		v.killed++
		return
	case d.Fate == history.Wrong:
		v.breaks("an error that says neither that it was sent nor that it was not: %s", d.Error)
	case d.Fate == history.Unknown:
		v.unknown++
	case d.Fate == history.Unsent:
		v.unsent++
	case d.Degraded:
		v.degraded++
	case d.peek:
		v.peeked++
	case d.Allowed:
		v.allowed++
	default:
		v.refused++
	}
	v.longest = max(v.longest, d.Took)
	delay := d.Took - d.Stalled - deadline
	if v.latest = max(v.latest, delay); delay > lateness {
		v.breaks("a decision of process %d on %s, %.1f s into the run, took %v, %v of which the machine stalled; its deadline was %v; %s %s",
			d.process, d.shard, r.seconds(d.call), d.Took, d.Stalled, deadline, d.Fate, d.Error)
	}
	if d.Fate != history.Answered || d.peek || d.Degraded {
		return
	}
	if !d.possible(chargeOf(d.key).Policy.Limits[0]) {
		v.breaks("a decision that makes no sense: %v", d.answer)
	}
}

// possible reports whether d is a possible answer under limit.
func (d *decision) possible(limit throttler.Limit) bool {
	switch {
	case d.Reset <= d.Decided || limit.Aligned && d.Reset%window.Milliseconds() != 0:
		return false
	case d.Allowed:
		return d.Used >= 1 && d.Used <= limit.Quota
	default:
		return d.Used == limit.Quota
	}
}

// judgeWindows checks that no window admits more than its quota, except for counts that its
// shard lost in it.
func (r *run) judgeWindows(v *verdict) {
	type key struct {
		key   int
		reset int64
	}
	windows := make(map[key][]*decision)
	for _, d := range r.decisions {
		if d.charged() && d.key < windowKeys {
			k := key{d.key, d.Reset}
			windows[k] = append(windows[k], d)
		}
	}
	for k, decisions := range windows {
		bound, lost := r.bound(decisions, k.reset)
		resets := make(map[int64]bool)
		for _, d := range decisions {
			if resets[d.Used] && !lost {
				v.breaks("key %d: two takes were answered that %d are used until %d", k.key, d.Used, k.reset)
			}
			resets[d.Used] = true
		}
		admitted := int64(len(decisions))
		v.windows++
		if admitted > quota {
			v.overWindows++
			v.excess += admitted - quota
		}
		if admitted > bound {
			v.beyond += admitted - bound
			v.breaks("key %d: %d were admitted until %d, of a quota of %d; at most %d can be explained by counts that were lost", k.key, admitted, k.reset, quota, bound)
		}
	}
}

// bound returns how many decisions like all, admitted until reset, the quota and lost counts
// can explain, and whether counts were lost.
func (r *run) bound(decisions []*decision, reset int64) (bound int64, lost bool) {
	bound = quota
	for _, f := range r.faults {
		if f.lost != decisions[0].shard || !r.overlaps(f, reset) {
			continue
		}
		lost = true
		if f.everything {
			bound += quota
			continue
		}
		for _, d := range decisions {
			if d.At > f.from-int64(replLag) && d.At <= f.to {
				bound++
			}
		}
	}
	return bound, lost
}

// overlaps reports whether f happened while some process may have charged the window that ends
// at reset.
func (r *run) overlaps(f *fault, reset int64) bool {
	wall := func(t int64) int64 { return r.beganWall + (t-r.began)/int64(time.Millisecond) }
	return wall(f.to) >= reset-window.Milliseconds()-maxSkew && wall(f.from) <= reset+maxSkew
}

// judgeCounts checks that the counts are the answered units, and perhaps the unknown units,
// since the shard last lost its counts.
func (r *run) judgeCounts(v *verdict) {
	for key, used := range r.used {
		var lostAll, lostSome int64
		var least, greatest int64
		for _, d := range r.decisions {
			if d.key != key {
				continue
			}
			if least == 0 && greatest == 0 {
				for _, f := range r.faults {
					if f.lost == d.shard {
						lostSome = f.to
						if f.everything {
							lostAll = f.from
						}
					}
				}
			}
			if d.charged() && d.call >= lostSome {
				least++
			}
			if d.mayHaveCharged() && (!d.returned || d.At >= lostAll) {
				greatest++
			}
		}
		if used < least || used > greatest {
			v.breaks("key %d: %d units are counted; want %d, which were answered since the last loss, to %d, with those that are unknown", key, used, least, greatest)
		}
	}
}

// judgeFault returns the effect of f.
func (r *run) judgeFault(f *fault) row {
	row := row{fault: f, missed: len(f.processes) == 0}
	type pair struct {
		process int
		shard   string
	}
	first := make(map[pair]int64)
	for _, d := range r.decisions {
		if !d.returned {
			continue
		}
		if d.At >= f.from && d.call <= f.to+int64(time.Second) {
			row.longest = max(row.longest, d.Took)
			if d.failed() {
				row.failed++
			}
		}
		p := pair{d.process, d.shard}
		if d.call >= f.to && !d.peek && !d.failed() && !d.Degraded && (first[p] == 0 || d.At < first[p]) {
			first[p] = d.At
		}
	}
	for _, process := range f.processes {
		for _, shard := range f.shards {
			start := first[pair{process, shard}]
			if start == 0 {
				row.recovered = -1
				return row
			}
			row.recovered = max(row.recovered, time.Duration(start-f.to))
		}
	}
	return row
}

// stalled returns the longest stall of a decision between two instants.
func (r *run) stalled(from, to int64) (longest time.Duration) {
	for _, d := range r.decisions {
		if d.returned && d.At >= from && d.call <= to {
			longest = max(longest, d.Stalled)
		}
	}
	return longest
}

// finalCounts returns the counts of the exact keys, from the servers directly.
func (s *stack) finalCounts() (used map[int]int64, err error) {
	b, done, err := open(s.direct())
	if err != nil {
		return nil, err
	}
	defer done()
	used = make(map[int]int64)
	for key := windowKeys; key < windowKeys+exactKeys; key++ {
		d, err := peek(b, key)
		if err != nil {
			return nil, err
		}
		used[key] = d.Limit(0).Used
	}
	return used, nil
}
