package division

import "time"

// Status is the division as one member knows it.
type Status struct {
	Self     string        `json:"self"`
	Epoch    uint64        `json:"epoch"`    // of the list
	Members  []string      `json:"members"`  // on the list, in the order of shares
	Silent   []string      `json:"silent"`   // took no part in the division that is in force here
	Valid    bool          `json:"valid"`    // holds shares
	Round    uint64        `json:"round"`    // of the division that is in force here
	Complete bool          `json:"complete"` // all members of the division are known to have taken it in
	Age      time.Duration `json:"age"`      // since this member took it in
	Quotas   []QuotaStatus `json:"quotas"`
}

// QuotaStatus is the division of one quota.
type QuotaStatus struct {
	Name   string           `json:"name"`
	Total  int64            `json:"total"`
	Units  int64            `json:"units"`  // that this process may admit now
	Shares []int64          `json:"shares"` // by the division, of Members; -1: took no part, and keeps its share
	Demand []float64        `json:"demand"` // units a second, of Members, as the division saw it; -1: took no part
	Unused int64            `json:"unused"` // that no member of the division may use: kept by silent members, or lost until more than half take part
	Keys   map[uint64]int64 `json:"keys"`   // units of the keys with their own divisions, that this process may admit now
}
