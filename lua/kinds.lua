-- kinds.lua: the algorithms by the numbers that name them in arguments and in
-- states, as algorithm/kinds.go has them. No other part lists them.
--
-- Provides algorithm_of, unknown_kind. Uses what the parts of algorithms/
-- provide: for each kind a function that makes its algorithm, a table of
--
--   family            a record of another kind of the same family can be adopted
--   has_short_form    one record alone may take the short form; it is {at, count}
--   mark_is_reset_at  replies leave out start_at, mark and fraction
--   new(self, kind, window)   an empty record
--   read(self, state, place)  the record at that place of a state, and the place
--                             after it
--   write(r)          its bytes; the first is the kind
--   adopt(r, l, now)  prepares r to continue under limit l at now; nil if there
--                     is nothing to prepare, whatever l's window
--   used(r, l, now)             what counts, rounded up
--   reset_at(r, now)            from when on nothing counts; now if nothing does
--   retry_at(r, l, cost, now)   when cost, which does not fit now, but in the
--                               capacity, fits
--   charge(r, l, cost, now)     charges, room or no room; returns mark, fraction
--                               and start_at (0 if not a queue)
--   give_back(r, l, mark, fraction, amount, now)  returns amount of that charge
--
-- A record is {algorithm, kind, window} and what its algorithm keeps. Only the algorithms
-- that a call needs are made: to make a function is a good part of its cost.

local KINDS = {
  fixed_window,   -- 1
  aligned_window, -- 2
  sliding_window, -- 3
  sliding_log,    -- 4
  token_bucket,   -- 5
  leaky_bucket,   -- 6
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

local function unknown_kind()
  return redis.error_reply('ERR a limit or a stored state is of a kind that this script does not know: a newer version, or something else, wrote it')
end
