-- bucket.lua: both buckets, as algorithm/bucket.go has them. A record is the
-- instant at which the bucket is drained: a millisecond, and a fraction in units
-- of 1/quota of one.
--
-- Provides token_bucket and leaky_bucket. Uses add_instant, mul_div, ceil_level.

local function bucket(family, is_queue)
  local FORM = '>I1I6I6I7' -- kind, window; drained at, fraction

  -- The fraction under a quota that may have been lowered.
  local function fraction_of(r, l) return min(r.fraction, l.quota - 1) end

  local function reset_at(r, now)
    if r.fraction > 0 then return max(r.at + 1, now) end
    return max(r.at, now)
  end

  return {
    family = family,

    new = function(self, kind, window) return {algorithm = self, kind = kind, window = window, at = 0, fraction = 0} end,
    read = function(self, state, place)
      local kind, window, at, fraction, after = unpack(FORM, state, place)
      return {algorithm = self, kind = kind, window = window, at = at, fraction = fraction}, after
    end,
    write = function(r) return pack(FORM, r.kind, r.window, r.at, r.fraction) end,

    used = function(r, l, now)
      if reset_at(r, now) <= now then return 0 end
      return ceil_level(r.at - now, l.quota, fraction_of(r, l), l.window)
    end,
    reset_at = reset_at,
    retry_at = function(r, l, cost)
      local ahead, rest = mul_div(l.capacity - cost, l.window, l.quota)
      if rest < fraction_of(r, l) then ahead = ahead - 1 end
      return r.at - ahead
    end,
    charge = function(r, l, cost, now)
      local start_at = 0
      if is_queue then start_at = reset_at(r, now) end
      if r.at < now then r.at, r.fraction = now, 0 end
      local fraction = fraction_of(r, l)
      local ahead, rest = mul_div(cost, l.window, l.quota)
      r.at = add_instant(r.at, ahead)
      if fraction >= l.quota - rest then
        r.at, r.fraction = add_instant(r.at, 1), fraction - (l.quota - rest)
      else
        r.fraction = fraction + rest
      end
      return r.at, r.fraction, start_at
    end,
    give_back = function(r, l, mark, mark_fraction, amount, now)
      if reset_at(r, now) <= now or mark < now then return end
      local back, rest = mul_div(amount, l.window, l.quota)
      local left = mark - now
      if left < back or left == back and mark_fraction < rest then
        back, rest = left, mark_fraction
      end
      r.at, r.fraction = r.at - back, fraction_of(r, l) - rest
      if r.fraction < 0 then r.at, r.fraction = r.at - 1, r.fraction + l.quota end
      if r.at < now then r.at, r.fraction = now, 0 end
    end,
  }
end

local function token_bucket() return bucket('token-bucket', false) end

local function leaky_bucket() return bucket('leaky-bucket', true) end
