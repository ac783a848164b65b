package handoff

// release applies r to a stored count, or to nil. An expired count without a claim is treated
// as nil. It returns the outcome and the value to store instead, or nil if nothing changes.
// clock is the backend's, in ms.
func release(r *ReleaseRequest, stored *Stored, clock int64) (released Released, left *Stored) {
	life := r.Keep.Milliseconds()
	left = &Stored{Claim: &Claim{Version: r.Version, LeftFor: r.To}}
	if stored = stored.present(r.Now, clock); stored != nil {
		var claim Claim
		if stored.Claim != nil {
			claim = *stored.Claim
		}
		if claim.Version > r.Version || claim.Version == r.Version && claim.LeftFor != r.To {
			return Released{Superseded: true, Owner: claim.LeftFor, Version: claim.Version}, nil
		}
		left.State = stored.State.Clone()
		life = max(life, stored.Life(r.Now, clock))
		left.Claim.ReleaseVersion = r.Version
		if claim.LeftFor != 0 {
			left.Claim.ReleaseVersion = claim.ReleaseVersion
		}
		if left.Claim.ReleaseVersion != 0 {
			released = Released{
				AlreadyReleased: claim.LeftFor != 0,
				ReleaseVersion:  left.Claim.ReleaseVersion,
				State:           left.State.Append([]byte{}),
			}
		}
	}
	if r.ReadOnly {
		return released, nil
	}
	left.Claim.ExpiresAt = clock + life
	return released, left
}
