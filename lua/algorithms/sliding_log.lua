-- sliding_log.lua: as algorithm/sliding_log.go has it. A record has the number of the
-- log's entries and their sum. The entries, oldest first, are in log, a string, or,
-- of a long log, in a ring that stays in the key: {key, base, first, slots}, base
-- being the offset of its slots, of which first holds the oldest entry.
--
-- A charge writes one slot, and trimming moves first on, so that what a take costs
-- does not grow with the log. When a ring is full the state is rewritten, each ring
-- with room for half as many more; when three quarters are free, too. Between two
-- rewrites lie charges in proportion to the entries, so each charge pays for a
-- constant part.
--
-- Provides sliding_log. Uses MAX_LOG_COST of numbers.lua.

local function sliding_log()
  local FORM, RING_FORM = '>I1I6I4I7', '>I1I6I4I7I4I4' -- kind, window; entries, their sum; first, slots
  local MANY, MANY_ENTRIES, MANY_BYTES = '>I6I4I6I4I6I4I6I4I6I4I6I4I6I4I6I4', 8, 80

  -- The bytes of n entries, from the i-th on; the oldest is the 0th.
  local function get(r, i, n)
    if r.log then return string.sub(r.log, i * ENTRY_BYTES + 1, (i + n) * ENTRY_BYTES) end
    if n == 0 then return '' end
    local slot = (r.first + i) % r.slots
    local straight = min(n, r.slots - slot)
    local bytes = redis.call('GETRANGE', r.key, r.base + slot * ENTRY_BYTES, r.base + (slot + straight) * ENTRY_BYTES - 1)
    if straight < n then bytes = bytes .. redis.call('GETRANGE', r.key, r.base, r.base + (n - straight) * ENTRY_BYTES - 1) end
    return bytes
  end

  -- Makes these bytes the entries from the i-th on.
  local function set(r, i, bytes)
    if bytes == '' then return end
    if r.log then
      r.log = string.sub(r.log, 1, i * ENTRY_BYTES) .. bytes .. string.sub(r.log, i * ENTRY_BYTES + #bytes + 1)
      return
    end
    local slot = (r.first + i) % r.slots
    local straight = (r.slots - slot) * ENTRY_BYTES
    redis.call('SETRANGE', r.key, r.base + slot * ENTRY_BYTES, string.sub(bytes, 1, straight))
    if #bytes > straight then redis.call('SETRANGE', r.key, r.base, string.sub(bytes, straight + 1)) end
  end

  -- Reads the log out of the key, to rewrite the state.
  local function load(r) r.log = get(r, 0, r.entries) end

  -- The instant and the cost of the newest entry.
  local function newest(r)
    if r.entries == 0 then return 0, 0 end
    if not r.newest_at then r.newest_at, r.newest_cost = unpack(ENTRY, get(r, r.entries - 1, 1)) end
    return r.newest_at, r.newest_cost
  end

  -- Passes by entries, the oldest first, while they are no younger than at and their sum
  -- is less than sum. Returns how many these are, their sum, and the instant of the
  -- first of the others, nil if there is none.
  local function pass(r, at, sum)
    local i, n, passed = 0, MANY_ENTRIES, 0
    while i < r.entries do
      n = min(n, r.entries - i)
      local bytes, place = get(r, i, n), 1
      local last_place = #bytes - MANY_BYTES + 1
      while place <= last_place do -- to unpack eight at once costs hardly more than one
        local _, a, _, b, _, c, _, d, _, e, _, f, _, g, last, h = unpack(MANY, bytes, place)
        local more = passed + a + b + c + d + e + f + g + h
        if last > at or more >= sum then break end
        place, passed = place + MANY_BYTES, more
      end
      while place <= #bytes do
        local entry_at, cost = unpack(ENTRY, bytes, place)
        if entry_at > at or passed + cost >= sum then return i + (place - 1) / ENTRY_BYTES, passed, entry_at end
        place, passed = place + ENTRY_BYTES, passed + cost
      end
      i, n = i + n, n * 8
    end
    return r.entries, passed, nil
  end

  local function drop(r, n, sum)
    if r.log then r.log = string.sub(r.log, n * ENTRY_BYTES + 1) else r.first = (r.first + n) % r.slots end
    r.entries, r.count = r.entries - n, r.count - sum
  end

  -- Drops entries that do not count any more. It comes before anything else.
  local function trim(r, now)
    if r.trimmed_at == now or r.entries == 0 then return end
    r.trimmed_at = now
    local dead_at = now - r.window
    if unpack(ENTRY, get(r, 0, 1)) > dead_at then return end
    if newest(r) <= dead_at then
      drop(r, r.entries, r.count)
    else
      drop(r, pass(r, dead_at, math.huge))
    end
  end

  local function charge(r, cost, now)
    trim(r, now)
    cost = min(cost, MAX_LOG_COST)
    local last, before = newest(r)
    local place = r.entries
    if r.entries == 0 or last < now then
      if not r.log and r.entries == r.slots then load(r) end
      last, before, r.entries = now, 0, r.entries + 1
    else -- time that stepped back logs at the last instant: entries stay in order
      place = r.entries - 1
    end
    r.newest_at, r.newest_cost = last, min(before + cost, MAX_LOG_COST)
    set(r, place, pack(ENTRY, last, r.newest_cost))
    r.count = r.count + r.newest_cost - before
    return last, 0, 0
  end

  local function give_back(r, mark, c, now)
    trim(r, now)
    local first, after = 0, r.entries -- where the entry can be
    while first < after do
      local middle = math.floor((first + after) / 2)
      if unpack(ENTRY, get(r, middle, 1)) < mark then first = middle + 1 else after = middle end
    end
    if first == r.entries then return false end
    local at, cost = unpack(ENTRY, get(r, first, 1))
    if at ~= mark then return false end
    local amount = min(c.charged - c.cost, cost)
    r.count, r.newest_at = r.count - amount, nil
    if cost > amount then
      set(r, first, pack(ENTRY, at, cost - amount))
    else -- the younger ones move up
      set(r, first, get(r, first + 1, r.entries - first - 1))
      r.entries = r.entries - 1
      if r.log then r.log = string.sub(r.log, 1, r.entries * ENTRY_BYTES) end
    end
    return true
  end

  return {
    family = 'sliding-log',
    has_log = true,

    new = function(self, kind, window)
      return {algorithm = self, kind = kind, window = window, ends_at = nil, entries = 0, count = 0, log = ''}
    end,
    read = function(self, state, place, rings)
      local kind, window, entries, count, after = unpack(FORM, state, place)
      local r = {algorithm = self, kind = kind, window = window, ends_at = nil, entries = entries, count = count}
      if not rings then
        place, after = after, after + ENTRY_BYTES * entries
        r.log = string.sub(state, place, after - 1)
        return r, after
      end
      r.first, r.slots, after = unpack('>I4I4', state, after)
      if r.entries > r.slots or r.first >= max(r.slots, 1) then error('not a ring') end
      r.key, r.base = rings.key, rings.after
      rings.after = rings.after + ENTRY_BYTES * r.slots
      if not r.key then -- the state is here as a whole
        local ring = string.sub(state, r.base + 1, rings.after)
        r.log = string.sub(string.sub(ring, ENTRY_BYTES * r.first + 1) .. ring, 1, ENTRY_BYTES * entries)
      end
      return r, after
    end,
    write = function(r, as_ring)
      if as_ring then return pack(RING_FORM, r.kind, r.window, r.entries, r.count, r.first, r.slots) end
      load(r)
      return pack(FORM, r.kind, r.window, r.entries, r.count) .. r.log
    end,
    -- The slots of a ring with room to spare.
    write_slots = function(r)
      load(r)
      local spare = math.floor(r.entries / 2) + 8
      r.first, r.slots = 0, r.entries + spare
      return r.log .. string.rep('\0', spare * ENTRY_BYTES)
    end,

    used = function(r, _, now)
      trim(r, now)
      return min(r.count, MAX_COUNT)
    end,
    reset_at = function(r, now)
      if r.entries == 0 then return now end
      return max(newest(r) + r.window, now)
    end,
    retry_at = function(r, l, cost, now)
      trim(r, now)
      local _, _, at = pass(r, math.huge, r.count + cost - l.capacity)
      return at and at + r.window or now
    end,
    charge = function(r, _, cost, now) return charge(r, cost, now) end,
    give_back = function(r, l, c, now) return give_back(r, l.mark, c, now) end,

    adopt = function(r, l)
      if r.window < l.window then r.entries, r.count, r.log, r.newest_at = 0, 0, '', nil else load(r) end
      r.window, r.trimmed_at = l.window, nil
    end,
    join = function(r, _, _, cost, now) charge(r, cost, now) end,
    give_back_joined = function(r, c, now) give_back(r, c.taken_at, c, now) end,
  }
end
