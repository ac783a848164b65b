package redispolicies

// SetMaxLog makes n the most entries of the log.
func (s *Store) SetMaxLog(n int) { s.maxLog = n }
