package policies

import "time"

// SourceStatus describes a source to an operator.
type SourceStatus struct {
	Name string `json:"name"`

	// Version is the version in force here, or 0 before the first. Processes with the same
	// version of a file or of Redis have the same policies.
	Version int64 `json:"version"`

	Since     time.Time `json:"since,omitzero"` // when it came into force, by the machine's clock
	Policies  int       `json:"policies"`
	Overrides int       `json:"overrides"` // that the source holds
	Found     int       `json:"found"`     // pairs of policy and key that it remembers, with an override or without

	// Wrong says why a newer version is not in force, or can't be read; otherwise empty.
	Wrong string `json:"wrong,omitempty"`
}

// Status returns the status of each source, in the order that decisions ask them.
func (t *Table) Status() []SourceStatus {
	var states []SourceStatus
	for _, c := range t.View().contents {
		s := SourceStatus{Name: c.source.name, Version: c.version, Since: c.since, Policies: c.policies, Overrides: c.overrides}
		if c.source.found != nil {
			s.Found = c.source.found.len()
		}
		if wrong := c.source.wrong.Load(); wrong != nil {
			s.Wrong = *wrong
		}
		states = append(states, s)
	}
	return states
}

// Stats are the metrics of a table, each by the name of a source.
type Stats struct {
	Version   map[string]int64 `json:"version" metric:"gauge"`     // in force
	Age       map[string]int64 `json:"age_seconds" metric:"gauge"` // since it came into force
	Policies  map[string]int64 `json:"policies" metric:"gauge"`
	Overrides map[string]int64 `json:"overrides" metric:"gauge"` // that the source holds
	Found     map[string]int64 `json:"found" metric:"gauge"`     // pairs of policy and key that it remembers
	Wrong     map[string]int64 `json:"wrong"`                    // versions that were not put in force, and failures to ask for one
}

// Stats returns the metrics of t.
func (t *Table) Stats() Stats {
	s := Stats{map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]int64{}}
	for _, c := range t.View().contents {
		name := c.source.name
		s.Version[name], s.Policies[name], s.Overrides[name] = c.version, int64(c.policies), int64(c.overrides)
		s.Wrong[name] = c.source.wrongs.Load()
		if !c.since.IsZero() {
			s.Age[name] = int64(time.Since(c.since) / time.Second)
		}
		if c.source.found != nil {
			s.Found[name] = int64(c.source.found.len())
		}
	}
	return s
}
