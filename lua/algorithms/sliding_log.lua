-- sliding_log.lua: as algorithm/sliding_log.go has it. A record is the sum of the
-- log's entries and the log, a string, oldest entry first.
--
-- Provides sliding_log. Uses MAX_LOG_COST of numbers.lua.

local function sliding_log()
  local FORM = '>I1I6I4I7' -- kind, window; number of entries, their sum
  local ENTRY, ENTRY_BYTES = '>I6I4', 10 -- instant, cost

  local MANY, MANY_BYTES = '>' .. string.rep('I6I4', 8), 8 * ENTRY_BYTES

  local function last_of(r)
    if r.log == '' then return 0, 0 end
    return unpack(ENTRY, r.log, #r.log - ENTRY_BYTES + 1)
  end

  -- The sum of eight entries from a place on, and the last one's instant: to unpack
  -- them at once costs hardly more than to unpack one.
  local function sum_of_many(log, place)
    local _, a, _, b, _, c, _, d, _, e, _, f, _, g, last, h = unpack(MANY, log, place)
    return a + b + c + d + e + f + g + h, last
  end

  -- Drops entries that do not count any more. It comes before anything else.
  local function trim(r, now)
    if r.log == '' or unpack(ENTRY, r.log) + r.window > now then return end
    if last_of(r) + r.window <= now then
      r.log, r.count = '', 0
      return
    end
    local place, dead = 1, 0
    while place + MANY_BYTES <= #r.log do
      local sum, last = sum_of_many(r.log, place)
      if last + r.window > now then break end
      place, dead = place + MANY_BYTES, dead + sum
    end
    while true do -- the last entry counts
      local at, cost = unpack(ENTRY, r.log, place)
      if at + r.window > now then break end
      place, dead = place + ENTRY_BYTES, dead + cost
    end
    r.log, r.count = string.sub(r.log, place), r.count - dead
  end

  local function charge(r, cost, now)
    trim(r, now)
    cost = min(cost, MAX_LOG_COST)
    local last, before = last_of(r)
    if r.log == '' or last < now then
      r.log, r.count = r.log .. pack(ENTRY, now, cost), r.count + cost
      return now, 0, 0
    end
    -- Time that stepped back logs at the last instant: entries stay in order.
    local after = min(before + cost, MAX_LOG_COST)
    r.log = string.sub(r.log, 1, -ENTRY_BYTES - 1) .. pack(ENTRY, last, after)
    r.count = r.count + after - before
    return last, 0, 0
  end

  local function give_back(r, mark, c, now)
    trim(r, now)
    local first, after = 0, #r.log / ENTRY_BYTES -- where the entry can be
    while first < after do
      local middle = math.floor((first + after) / 2)
      if unpack(ENTRY, r.log, middle * ENTRY_BYTES + 1) < mark then first = middle + 1 else after = middle end
    end
    local place = first * ENTRY_BYTES + 1
    if place > #r.log then return false end
    local at, cost = unpack(ENTRY, r.log, place)
    if at ~= mark then return false end
    local amount, kept = min(c.charged - c.cost, cost), ''
    if cost > amount then kept = pack(ENTRY, at, cost - amount) end
    r.log = string.sub(r.log, 1, place - 1) .. kept .. string.sub(r.log, place + ENTRY_BYTES)
    r.count = r.count - amount
    return true
  end

  return {
    family = 'sliding-log',

    new = function(self, kind, window) return {algorithm = self, kind = kind, window = window, ends_at = nil, count = 0, log = ''} end,
    read = function(self, state, place)
      local kind, window, entries, count, first = unpack(FORM, state, place)
      local after = first + ENTRY_BYTES * entries
      return {algorithm = self, kind = kind, window = window, ends_at = nil, count = count, log = string.sub(state, first, after - 1)}, after
    end,
    write = function(r) return pack(FORM, r.kind, r.window, #r.log / ENTRY_BYTES, r.count) .. r.log end,

    used = function(r, _, now)
      trim(r, now)
      return min(r.count, MAX_COUNT)
    end,
    reset_at = function(r, now)
      if r.log == '' then return now end
      return max(last_of(r) + r.window, now)
    end,
    retry_at = function(r, l, cost, now)
      trim(r, now)
      local excess = r.count + cost - l.capacity
      local first = 1
      while first + MANY_BYTES <= #r.log do
        local freed = sum_of_many(r.log, first)
        if freed >= excess then break end
        first, excess = first + MANY_BYTES, excess - freed
      end
      for place = first, #r.log, ENTRY_BYTES do
        local at, freed = unpack(ENTRY, r.log, place)
        excess = excess - freed
        if excess <= 0 then return at + r.window end
      end
      return now
    end,
    charge = function(r, _, cost, now) return charge(r, cost, now) end,
    give_back = function(r, l, c, now) return give_back(r, l.mark, c, now) end,

    adopt = function(r, l)
      local earlier = l.window - r.window
      if earlier <= 0 then return end
      local moved = {}
      for place = 1, #r.log, ENTRY_BYTES do
        local at, cost = unpack(ENTRY, r.log, place)
        if at >= earlier then
          moved[#moved + 1] = pack(ENTRY, at - earlier, cost)
        else
          r.count = r.count - cost
        end
      end
      r.log = table.concat(moved)
    end,
    join = function(r, _, _, cost, now) charge(r, cost, now) end,
    give_back_joined = function(r, c, now) give_back(r, c.taken_at, c, now) end,
  }
end
