package division

import "time"

// Status is the division as one member knows it.
type Status struct {
	Self     string        `json:"self"`
	Epoch    uint64        `json:"epoch"`    // of the list
	Members  []string      `json:"members"`  // on the list, in the order of shares
	Silent   []string      `json:"silent"`   // did not answer the last round, so that it did not count
	Valid    bool          `json:"valid"`    // holds shares
	Round    uint64        `json:"round"`    // of the last division that this member took in
	Complete bool          `json:"complete"` // all members are known to have taken it in
	Age      time.Duration `json:"age"`      // since this member took it in
	Quotas   []QuotaStatus `json:"quotas"`
}

// QuotaStatus is the division of one quota.
type QuotaStatus struct {
	Name   string           `json:"name"`
	Total  int64            `json:"total"`
	Units  int64            `json:"units"`  // that this process may admit now
	Shares []int64          `json:"shares"` // by the last division, of Members; nil before the first by this list
	Demand []float64        `json:"demand"` // units a second, of Members, as that division saw it
	Keys   map[uint64]int64 `json:"keys"`   // units of the keys with their own divisions, that this process may admit now
}
