package rollout

import "maps"

// Stats has counts since New.
type Stats struct {
	// Served counts decisions other than peeks, by the name of the backend that
	// made them.
	Served map[string]int64 `json:"served"`

	// Evaluations counts evaluations of the flag.
	Evaluations int64 `json:"evaluations"`

	// Defaulted counts uses of the default in place of the flag's value, by the
	// reason: "no value", "unknown backend", "panic", "hangs", or an error code
	// of OpenFeature, such as FLAG_NOT_FOUND.
	Defaulted map[string]int64 `json:"defaulted"`

	// Moved counts the counts that this process moved to another backend.
	Moved int64 `json:"moved"`

	// Followed counts the times that a decision followed a count to where another
	// process had moved it.
	Followed int64 `json:"followed"`

	// Lost counts restarts of counts whose previous backend did not answer.
	Lost int64 `json:"lost"`

	// PassedOver counts the counts that were created although a backend that
	// nothing has named to this process did not answer, and may have had them.
	PassedOver int64 `json:"passed_over"`
}

// Stats returns the counts so far.
func (b *Backend) Stats() (now Stats) {
	b.stats.Change(func(s *Stats) {
		now = *s
		now.Defaulted = maps.Clone(s.Defaulted)
	})
	now.Served = make(map[string]int64)
	for _, m := range b.members {
		now.Served[m.name] = m.served.Load()
	}
	return now
}
