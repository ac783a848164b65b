-- algorithms.lua: the five algorithms, as package algorithm has them, function
-- by function. Random histories hold the two together. Numbers are doubles
-- here: integers are exact to 2^53, so nothing larger is ever computed.
--
-- A record is {kind, window, at, count, previous, fraction, log}; log is a
-- string of entries of 10 bytes, 6 instant and 4 cost, oldest first. A limit
-- is {kind, window, quota, capacity}.

local max, min = math.max, math.min
local MAX_COUNT, MAX_LOG_COST, MAX_INSTANT = 9007199254740992, 4294967295, 253402300799000
local CLAIM_MARGIN = 5000 -- ms
local ALIGNED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, LEAKY_BUCKET = 2, 3, 4, 6

local function add_count(a, b)
  if b > MAX_COUNT - a then return MAX_COUNT end
  return a + b
end

-- a * b / c rounded down, and the rest; above MAX_COUNT that, with no rest.
local function mul_div(a, b, c)
  local product = a * b
  if product < MAX_COUNT then
    local rest = product % c
    return (product - rest) / c, rest
  end
  -- a = whole * c + part, and part * b / c by doubling and adding modulo c,
  -- one bit of b after the other.
  local part = a % c
  local whole = (a - part) / c * b
  local quotient, rest, bit = 0, 0, 1
  while bit * 2 <= b do bit = bit * 2 end
  while bit >= 1 do
    quotient = quotient + quotient
    if rest >= c - rest then
      rest, quotient = rest - (c - rest), quotient + 1
    else
      rest = rest + rest
    end
    if b >= bit then
      b = b - bit
      if rest >= c - part then
        rest, quotient = rest - (c - part), quotient + 1
      else
        rest = rest + part
      end
    end
    bit = bit / 2
  end
  if whole > MAX_COUNT - quotient then return MAX_COUNT, 0 end
  return whole + quotient, rest
end

-- (ms * quota + fraction) / window, rounded up, at most MAX_COUNT.
local function ceil_level(ms, quota, fraction, window)
  local level, rest = mul_div(quota, ms, window)
  local more = fraction % window
  level = add_count(level, (fraction - more) / window)
  rest = rest + more
  if rest > window then return add_count(level, 2) end
  if rest > 0 then return add_count(level, 1) end
  return level
end

-- The sliding window at now, after windows that ended have moved on.
local function sliding_now(r, now)
  local start = now - now % r.window
  if start <= r.at then return r.at, max(now - r.at, 0), r.count, r.previous end
  if start == r.at + r.window then return start, now - start, 0, r.count end
  return start, now - start, 0, 0
end

-- Takes entries that no longer count out of a sliding log, once, before
-- anything else is asked of it.
local function prune(r, now)
  local place, dead = 1, 0
  while place <= #r.log do
    local at, cost = unpack('>I6I4', r.log, place)
    if at + r.window > now then break end
    place, dead = place + 10, dead + cost
  end
  if place > 1 then r.log, r.count = string.sub(r.log, place), r.count - dead end
end

local function reset_at(r, now)
  if r.kind <= ALIGNED_WINDOW then
    return max(r.at, now)
  elseif r.kind == SLIDING_WINDOW then
    local start, _, current, previous = sliding_now(r, now)
    if current > 0 then return min(start + 2 * r.window, MAX_INSTANT) end
    if previous > 0 then return min(start + r.window, MAX_INSTANT) end
    return now
  elseif r.kind == SLIDING_LOG then
    if r.log == '' then return now end
    return max(unpack('>I6', r.log, #r.log - 9) + r.window, now)
  end
  if r.fraction > 0 then return max(r.at + 1, now) end
  return max(r.at, now)
end

local function used(r, l, now)
  if r.kind <= ALIGNED_WINDOW then
    if now >= r.at then return 0 end
    return r.count
  elseif r.kind == SLIDING_WINDOW then
    local _, elapsed, current, previous = sliding_now(r, now)
    local weighted, rest = mul_div(previous, r.window - elapsed, r.window)
    if rest > 0 then weighted = weighted + 1 end
    return add_count(weighted, current)
  elseif r.kind == SLIDING_LOG then
    return min(r.count, MAX_COUNT)
  end
  if reset_at(r, now) <= now then return 0 end
  return ceil_level(r.at - now, l.quota, min(r.fraction, l.quota - 1), l.window)
end

-- The first instant at which cost fits, given that it does not fit now.
local function retry_at(r, l, cost, now)
  if cost > l.capacity then return -1 end
  if r.kind <= ALIGNED_WINDOW then
    return r.at
  elseif r.kind == SLIDING_WINDOW then
    local start, _, current, previous = sliding_now(r, now)
    local room = l.capacity - cost - current
    if room < 0 then
      start, room, previous = min(start + r.window, MAX_INSTANT), l.capacity - cost, current
    end
    local inside = mul_div(room, r.window, previous)
    return min(start + r.window - min(inside, r.window), MAX_INSTANT)
  elseif r.kind == SLIDING_LOG then
    local excess = r.count + cost - l.capacity
    for place = 1, #r.log, 10 do
      local at, freed = unpack('>I6I4', r.log, place)
      excess = excess - freed
      if excess <= 0 then return at + r.window end
    end
    return now
  end
  local ahead, rest = mul_div(l.capacity - cost, l.window, l.quota)
  if rest < min(r.fraction, l.quota - 1) then ahead = ahead - 1 end
  return r.at - ahead
end

-- Adds cost, room or no room. Returns what names the charge: its instant and
-- fraction.
local function charge(r, l, cost, now)
  if r.kind <= ALIGNED_WINDOW then
    if now < r.at then
      r.count = add_count(r.count, cost)
    else
      local opened = now
      if r.kind == ALIGNED_WINDOW then opened = now - now % r.window end
      r.at, r.count = min(opened + r.window, MAX_INSTANT), cost
    end
    return r.at, 0
  elseif r.kind == SLIDING_WINDOW then
    local start, _, current, previous = sliding_now(r, now)
    r.at, r.count, r.previous = start, add_count(current, cost), previous
    return start, 0
  elseif r.kind == SLIDING_LOG then
    cost = min(cost, MAX_LOG_COST)
    local last, before = 0, 0
    if r.log ~= '' then last, before = unpack('>I6I4', r.log, #r.log - 9) end
    if r.log == '' or last < now then
      r.log, r.count = r.log .. pack('>I6I4', now, cost), r.count + cost
      return now, 0
    end
    local after = min(before + cost, MAX_LOG_COST)
    r.log, r.count = string.sub(r.log, 1, -11) .. pack('>I6I4', last, after), r.count + after - before
    return last, 0
  end
  if r.at < now then r.at, r.fraction = now, 0 end
  r.fraction = min(r.fraction, l.quota - 1)
  local ahead, rest = mul_div(cost, l.window, l.quota)
  r.at = min(r.at + ahead, MAX_INSTANT)
  if r.fraction >= l.quota - rest then
    r.fraction = r.fraction - (l.quota - rest)
    r.at = min(r.at + 1, MAX_INSTANT)
  else
    r.fraction = r.fraction + rest
  end
  return r.at, r.fraction
end

-- Returns amount of the charge that (mark, mark_fraction) names, as far as it
-- still counts.
local function give_back(r, l, mark, mark_fraction, amount, now)
  if r.kind <= ALIGNED_WINDOW then
    if mark == r.at then r.count = max(r.count - amount, 0) end
  elseif r.kind == SLIDING_WINDOW then
    if mark == r.at then
      r.count = max(r.count - amount, 0)
    elseif mark == r.at - r.window then
      r.previous = max(r.previous - amount, 0)
    end
  elseif r.kind == SLIDING_LOG then
    -- From the newest: what is given back was mostly charged just now.
    for place = #r.log - 9, 1, -10 do
      local at, cost = unpack('>I6I4', r.log, place)
      if at < mark then return end
      if at == mark then
        amount = min(amount, cost)
        local kept = ''
        if cost > amount then kept = pack('>I6I4', at, cost - amount) end
        r.log = string.sub(r.log, 1, place - 1) .. kept .. string.sub(r.log, place + 10)
        r.count = r.count - amount
        return
      end
    end
  elseif reset_at(r, now) > now and mark >= now then
    local back, rest = mul_div(amount, l.window, l.quota)
    local left = mark - now
    if left < back or left == back and mark_fraction < rest then
      back, rest = left, mark_fraction
    end
    r.at = r.at - back
    r.fraction = min(r.fraction, l.quota - 1) - rest
    if r.fraction < 0 then
      r.fraction, r.at = r.fraction + l.quota, r.at - 1
    end
    if r.at < now then r.at, r.fraction = now, 0 end
  end
end

-- Makes a live record of the same algorithm go on under limit l, at now.
local function adopt(r, l, now)
  if r.kind == SLIDING_WINDOW and r.window ~= l.window then
    r.count, r.previous, r.at = used(r, l, now), 0, now - now % l.window
  end
  r.kind, r.window = l.kind, l.window
  if r.kind == SLIDING_LOG then prune(r, now) end
end
