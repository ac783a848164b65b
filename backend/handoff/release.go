package handoff

// release applies r to a stored count, or to nil. An expired count without a claim is treated
// as nil. It returns the outcome and the value to store instead, or nil if nothing changes.
// clock is the backend's, in ms.
func release(r *ReleaseRequest, stored *Stored, clock int64) (released Released, remainder *Stored) {
	life := r.Keep.Milliseconds()
	remainder = &Stored{Claim: &Claim{Version: r.Version, LeftFor: r.To}}
	if stored = stored.present(r.Now, clock); stored != nil {
		var claim Claim
		if stored.Claim != nil {
			claim = *stored.Claim
		}
		if claim.Version > r.Version || claim.Version == r.Version && claim.LeftFor != r.To {
			return Released{Superseded: true, Owner: claim.LeftFor, Version: claim.Version}, nil
		}
		remainder.State = stored.State.Clone()
		life = max(life, stored.Life(r.Now, clock))
		remainder.Claim.ReleaseVersion = r.Version
		if claim.LeftFor != 0 {
			remainder.Claim.ReleaseVersion = claim.ReleaseVersion
		}
		if remainder.Claim.ReleaseVersion != 0 {
			released = Released{
				AlreadyReleased: claim.LeftFor != 0,
				ReleaseVersion:  remainder.Claim.ReleaseVersion,
				State:           remainder.State.Append([]byte{}),
			}
		}
	}
	if r.ReadOnly {
		return released, nil
	}
	remainder.Claim.ExpiresAt = clock + life
	return released, remainder
}
