-- kinds.lua: the algorithms by the numbers that name them in arguments and in
-- states, as algorithm/kinds.go has them. No other part lists them.
--
-- Provides algorithm_of. Uses fixed_window, aligned_window of fixed_window.lua;
-- sliding_window of sliding_window.lua; sliding_log of sliding_log.lua; token_bucket,
-- leaky_bucket of bucket.lua. Each makes its algorithm, a table of
--
--   family            records of one family can be adopted by each other's limits
--   has_short_form    one record alone may take the short forms; it is {at, count}
--   code              what it adds to a window's code then
--   new(self, kind, window)   an empty record
--   read(self, state, place)  the record at that place of a state, and the place
--                             after it
--   write(r)          its bytes; the first is the kind
--   used(r, l, now)             what counts, rounded up
--   reset_at(r, now)            from when on nothing counts; now if nothing does
--   retry_at(r, l, cost, now)   when cost, which does not fit now, but in the
--                               capacity, fits
--   charge(r, l, cost, now)     charges, room or no room; returns mark, fraction
--                               and start_at (0 if not a queue)
--   give_back(r, l, c, now)     returns what c, with the mark of l, was charged too
--                               much; whether what the mark names is there
--   adopt(r, l)                 makes r, of another window or quota, count under l
--   join(r, limits, records, cost, now)  adds what another policy was charged, by
--                               these limits' records
--   give_back_joined(r, c, now)  returns what c, of another policy, was charged too
--                               much, as far as r is sure to count it
--
-- A record is {algorithm, kind, window, ends_at} and what its algorithm keeps. Only the algorithms
-- that a call needs are made: to make a function is a good part of its cost.

local KINDS = {
  [FIXED_WINDOW] = fixed_window,
  [ALIGNED_WINDOW] = aligned_window,
  [SLIDING_WINDOW] = sliding_window,
  [SLIDING_LOG] = sliding_log,
  [TOKEN_BUCKET] = token_bucket,
  [LEAKY_BUCKET] = leaky_bucket,
}

-- Returns nil if the kind is not known.
local function algorithm_of(kind)
  local algorithm = KINDS[kind]
  if type(algorithm) == 'function' then
    algorithm = algorithm()
    KINDS[kind] = algorithm
  end
  return algorithm
end
