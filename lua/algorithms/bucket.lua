-- bucket.lua: both buckets, as algorithm/bucket.go has them. A record is the
-- instant at which the bucket is drained: a millisecond, and a fraction in units
-- of 1/quota of one; that quota and its capacity, and when the bucket was charged, by the clock
-- furthest ahead.
--
-- Provides token_bucket and leaky_bucket. Uses add_count, add_instant, mul_div,
-- ceil_level of numbers.lua.

local function bucket(family, is_queue)
  local FORM = '>I1I6I6I7I7I6I7' -- kind, window; drained at, fraction, quota, charged at, capacity

  -- The instant, rounded up.
  local function drained_at(r)
    if r.fraction > 0 then return add_instant(r.at, 1) end
    return r.at
  end

  local function reset_at(r, now) return max(drained_at(r), now) end

  -- Moves the instant by the time that cost takes to drain.
  local function forward(r, window, quota, cost)
    local ahead, rest = mul_div(cost, window, quota)
    r.at = add_instant(r.at, ahead)
    if r.fraction >= quota - rest then
      r.at, r.fraction = add_instant(r.at, 1), r.fraction - (quota - rest)
    else
      r.fraction = r.fraction + rest
    end
  end

  local function back(r, ms, fraction)
    r.at, r.fraction = r.at - ms, r.fraction - fraction
    if r.fraction < 0 then r.at, r.fraction = r.at - 1, r.fraction + r.quota end
  end

  -- Makes what is left at the instant from drain as under l from then on.
  local function convert(r, l, from)
    local units, part = mul_div(r.at - from, r.quota, r.window)
    local more = r.fraction % r.window
    units, part = add_count(units, (r.fraction - more) / r.window), part + more -- in 1/window of a unit
    if part >= r.window then units, part = add_count(units, 1), part - r.window end
    local ahead, rest = mul_div(units, l.window, l.quota)
    local lost
    part, lost = mul_div(part, l.window, r.window)
    if lost > 0 then part = part + 1 end -- rounded up as units and as a time are
    more, part = mul_div(part, 1, l.quota)
    ahead = ahead + more
    if rest >= l.quota - part then
      ahead, rest = ahead + 1, rest - (l.quota - part)
    else
      rest = rest + part
    end
    r.at, r.fraction, r.quota, r.window = add_instant(from, ahead), rest, l.quota, l.window
  end

  local function before(at, fraction, other, other_fraction)
    return at < other or at == other and fraction < other_fraction
  end

  -- Where the queue would end if its gaps followed each other.
  local function gaps_end(r)
    local gaps = {at = r.gaps_at, fraction = r.gaps_fraction}
    forward(gaps, r.window, r.quota, r.gaps)
    return gaps.at, gaps.fraction
  end

  -- Once as much time has passed since the first gap as they are long, they are forgotten.
  local function forget_gaps(r, now)
    if r.gaps and not before(now, 0, gaps_end(r)) then r.gaps = nil end
  end

  local function charge(r, l, cost, now)
    if r.at < now then r.at, r.fraction = now, 0 end
    forget_gaps(r, now)
    if r.quota and (r.quota ~= l.quota or r.window ~= l.window) then convert(r, l, now) end
    r.quota, r.capacity, r.charged_at = l.quota, l.capacity, max(r.charged_at, now)
    forward(r, l.window, l.quota, cost)
  end

  -- What is still to drain between now and the mark comes back.
  local function refill(r, c, mark, mark_fraction, now)
    local ms, rest = mul_div(c.charged - c.cost, r.window, r.quota)
    local left = mark - now
    if left < ms or left == ms and mark_fraction < rest then ms, rest = left, mark_fraction end
    back(r, ms, rest)
    if r.at < now then r.at, r.fraction = now, 0 end
  end

  -- The last of a queue gives its place back, but for its first unit's if its
  -- start has come; a place in front of others is a gap. Once there is nothing but gaps
  -- from the first one to the end, that is where the queue ends.
  local function leave(r, l, c, now)
    if l.quota ~= r.quota or l.fraction >= r.quota or before(r.at, r.fraction, l.mark, l.fraction) then return false end
    local gap, cost = {at = l.mark, fraction = l.fraction, quota = r.quota}, c.cost
    back(gap, mul_div(c.charged, l.window, l.quota))
    if drained_at(gap) <= now then cost = max(cost, 1) end
    forward(gap, l.window, l.quota, cost)
    forget_gaps(r, now)
    if l.mark == r.at and l.fraction == r.fraction then
      r.at, r.fraction = gap.at, gap.fraction
    elseif cost < c.charged then
      if not r.gaps or before(gap.at, gap.fraction, r.gaps_at, r.gaps_fraction) then
        r.gaps_at, r.gaps_fraction = gap.at, gap.fraction
      end
      r.gaps = add_count(r.gaps or 0, c.charged - cost)
    end
    if r.gaps then
      local at, fraction = gaps_end(r)
      if at == r.at and fraction == r.fraction then
        r.at, r.fraction, r.gaps = r.gaps_at, r.gaps_fraction, nil
      end
    end
    return true
  end

  local function give_back_joined(r, c, now)
    local ahead, rest = mul_div(c.charged, r.window, r.quota)
    local mark = add_instant(c.taken_at, ahead)
    if not is_queue and reset_at(r, now) > now and mark >= now then refill(r, c, mark, rest, now) end
  end

  return {
    family = family,

    new = function(self, kind, window)
      return {algorithm = self, kind = kind, window = window, ends_at = nil, at = 0, fraction = 0, quota = nil, charged_at = 0, capacity = nil}
    end,
    read = function(self, state, place)
      local kind, window, at, fraction, quota, charged_at, capacity, after = unpack(FORM, state, place)
      return {algorithm = self, kind = kind, window = window, ends_at = nil, at = at, fraction = fraction, quota = quota, charged_at = charged_at, capacity = capacity}, after
    end,
    write = function(r) return pack(FORM, r.kind, r.window, r.at, r.fraction, r.quota, r.charged_at, r.capacity) end,

    used = function(r, _, now)
      if reset_at(r, now) <= now then return 0 end
      return ceil_level(r.at - now, r.quota, r.fraction, r.window)
    end,
    reset_at = reset_at,
    retry_at = function(r, l, cost)
      local ahead, rest = mul_div(l.capacity - cost, r.window, r.quota)
      if rest < r.fraction then ahead = ahead - 1 end
      return r.at - ahead
    end,
    charge = function(r, l, cost, now)
      local start_at = is_queue and reset_at(r, now) or 0
      charge(r, l, cost, now)
      return r.at, r.fraction, start_at
    end,
    give_back = function(r, l, c, now)
      if reset_at(r, now) <= now or l.mark < now then return false end
      if is_queue then return leave(r, l, c, now) end
      if r.quota ~= l.quota then
        give_back_joined(r, c, now)
      else
        refill(r, c, l.mark, l.fraction, now)
      end
      return true
    end,

    adopt = function(r, l)
      if not is_queue then
        local rate = mul_div(l.quota, r.window, l.window)
        if rate >= r.quota and r.at >= r.charged_at then convert(r, l, r.charged_at) end
        return
      end
      local lost
      r.fraction, lost = mul_div(r.fraction, l.quota, r.quota)
      if lost > 0 then r.fraction = r.fraction + 1 end
      if r.fraction == l.quota then r.at, r.fraction = r.at + 1, 0 end
      r.quota, r.window, r.gaps = l.quota, l.window, nil
    end,
    join = function(r, limits, records, cost, now)
      local others = 0 -- when theirs have drained
      for i = 1, #limits do
        if records[i].kind == r.kind then others = max(others, drained_at(records[i])) end
      end
      if is_queue and others > 0 then
        if others > r.at then r.at, r.fraction = others, 0 end
        return
      end
      local at, fraction = r.at, r.fraction
      charge(r, r, cost, now)
      local full, part = mul_div(r.capacity, r.window, r.quota)
      full = add_instant(now, full)
      if full < others then full, part = others, 0 end
      if r.at > full or r.at == full and r.fraction > part then
        r.at, r.fraction = full, part
        if at > full or at == full and fraction > part then r.at, r.fraction = at, fraction end
      end
    end,
    give_back_joined = give_back_joined,
  }
end

local function token_bucket() return bucket('token-bucket', false) end

local function leaky_bucket() return bucket('leaky-bucket', true) end
