-- sliding_log.lua: the number of entries, their sum, and a ring of slots behind all records,
-- as in throttler/algorithm/sliding_log.go. The first slot with an entry is stored, too.
--
-- A log that fits in one read is written as a whole. In a longer one, a charge writes one slot
-- and trimming advances the first slot, so that the cost of a take does not grow with the log.
-- Its ring is rewritten with room for half as many more entries when it is full, and when three
-- quarters of it are free. The number of charges between two rewrites is proportional to the
-- entries, so each charge pays for a constant part.

--@ functions
local FRONT_BYTES, FRONT_END, RINGS = 2560, '2559', 10 -- a number as an argument costs more than a string
local ENTRY, ENTRY_BYTES, MAX_LOG_COST = '>I6I4', 10, 4294967295
local MANY, MANY_ENTRIES, MANY_BYTES = '>I6I4I6I4I6I4I6I4I6I4I6I4I6I4I6I4', 8, 80

-- A log is {entries, sum, log}, where log is its entries, oldest first, or {entries, sum, key,
-- base, first, slots}, where base is the offset of its slots in the key's string.
local function open_log(entries, sum, first, slots, key, base, state)
  local r = {entries = entries, sum = sum, slots = slots, first = first, key = key, base = base}
  if state then
    local last = first + entries
    r.log = sub(state, base + first * ENTRY_BYTES + 1, base + min(last, slots) * ENTRY_BYTES)
    if last > slots then r.log = r.log .. sub(state, base + 1, base + (last - slots) * ENTRY_BYTES) end
  end
  return r
end

-- Returns the bytes of n entries, from the i-th on; the oldest is the 0th.
local function get(r, i, n)
  if r.log then return sub(r.log, i * ENTRY_BYTES + 1, (i + n) * ENTRY_BYTES) end
  if n == 0 then return '' end
  local slot = (r.first + i) % r.slots
  local straight = min(n, r.slots - slot)
  local bytes = call('GETRANGE', r.key, r.base + slot * ENTRY_BYTES, r.base + (slot + straight) * ENTRY_BYTES - 1)
  if straight < n then bytes = bytes .. call('GETRANGE', r.key, r.base, r.base + (n - straight) * ENTRY_BYTES - 1) end
  return bytes
end

-- Returns the instant and the cost of the i-th entry.
local function entry(r, i)
  if r.log then return unpack(ENTRY, r.log, i * ENTRY_BYTES + 1) end
  return unpack(ENTRY, get(r, i, 1))
end

-- Stores bytes as the entries from the i-th on.
local function set(r, i, bytes)
  if r.log and i * ENTRY_BYTES == #r.log then
    r.log = r.log .. bytes
  elseif r.log then
    r.log = sub(r.log, 1, i * ENTRY_BYTES) .. bytes .. sub(r.log, i * ENTRY_BYTES + #bytes + 1)
  elseif bytes ~= '' then
    local slot = (r.first + i) % r.slots
    local straight = (r.slots - slot) * ENTRY_BYTES
    call('SETRANGE', r.key, r.base + slot * ENTRY_BYTES, sub(bytes, 1, straight))
    if #bytes > straight then call('SETRANGE', r.key, r.base, sub(bytes, straight + 1)) end
  end
end

-- Returns the instant and the cost of the newest entry, or 0 and 0.
local function newest(r)
  if r.entries == 0 then return 0, 0 end
  if not r.newest_at then r.newest_at, r.newest_cost = entry(r, r.entries - 1) end
  return r.newest_at, r.newest_cost
end

-- Passes by entries, oldest first, that are not younger than at, while their sum is less than
-- sum. Returns their number, their sum, and the instant of the next entry, or nil.
local function pass(r, at, sum)
  local i, n, passed = 0, r.log and r.entries or MANY_ENTRIES, 0
  while i < r.entries do
    n = min(n, r.entries - i)
    local bytes, place = r.log or get(r, i, n), 1
    local last_place = #bytes - MANY_BYTES + 1
    while place <= last_place do -- unpacking eight costs hardly more than one
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

-- Drops entries that no longer count.
local function trim(r, dead_at)
  if r.entries == 0 or entry(r, 0) > dead_at then return end
  local n, sum = pass(r, dead_at, MAX_COUNT)
  if r.log then r.log = sub(r.log, n * ENTRY_BYTES + 1) else r.first = (r.first + n) % r.slots end
  r.entries, r.sum = r.entries - n, r.sum - sum
end

-- Returns the instant until which the newest entry counts, or 0 if the log is empty.
local function counts_until(r, window)
  return r.entries > 0 and newest(r) + window or 0
end

local function add_entry(r, cost, now)
  cost = min(cost, MAX_LOG_COST)
  local last, before = newest(r)
  if r.entries == 0 or last < now then
    if not r.log and r.entries == r.slots then r.log = get(r, 0, r.entries) end
    last, before, r.entries = now, 0, r.entries + 1
  end -- if time steps back, the last instant is charged: entries stay in order
  local amount = min(before + cost, MAX_LOG_COST)
  set(r, r.entries - 1, pack(ENTRY, last, amount))
  r.sum, r.newest_at, r.newest_cost = r.sum + amount - before, last, amount
end

local function take_from_entry(r, mark, amount)
  local first, after = 0, r.entries -- where the entry can be
  while first < after do
    local middle = math.floor((first + after) / 2)
    if entry(r, middle) < mark then first = middle + 1 else after = middle end
  end
  if first == r.entries then return end
  local at, cost = entry(r, first)
  if at ~= mark then return end
  amount = min(amount, cost)
  r.sum, r.newest_at = r.sum - amount, nil
  if cost > amount then
    set(r, first, pack(ENTRY, at, cost - amount))
  else -- the younger ones move up
    set(r, first, get(r, first + 1, r.entries - first - 1))
    r.entries = r.entries - 1
    if r.log then r.log = sub(r.log, 1, r.entries * ENTRY_BYTES) end
  end
  return true
end

-- Returns the instant at which cost fits the capacity, 0 if it fits now or never will.
local function fits_at(r, cost, capacity, window)
  if cost > capacity or cost <= capacity - r.sum then return 0 end
  local _, _, at = pass(r, MAX_INSTANT, r.sum + cost - capacity)
  return at and at + window or 0
end

-- Returns the rings behind rows of so many bytes, or nil if the slots stay in place. Rings of
-- a long state have room to spare.
local function new_rings(logs, bytes)
  local entries, slots, whole = 0, 0, false
  for i = 1, #logs do
    local r = logs[i]
    entries, slots, whole = entries + r.entries, slots + r.slots, whole or r.log
  end
  if not whole and entries * 4 >= slots then return nil end
  local rings, is_long = '', bytes + entries * ENTRY_BYTES >= FRONT_BYTES
  for i = 1, #logs do
    local r = logs[i]
    r.log = r.log or get(r, 0, r.entries)
    r.first, r.slots, rings = 0, r.entries, rings .. r.log
    if is_long then
      local spare = math.floor(r.entries / 2) + 8
      r.slots, rings = r.entries + spare, rings .. string.rep('\0', spare * ENTRY_BYTES)
    end
  end
  return rings
end

local key, base, whole -- of the charge that is read

--@ read
      local body@ = try('GETRANGE', keys[first + INDEX], '0', FRONT_END)
      if type(body@) == 'table' then -- the key holds no string
        if find(body@.err, 'WRONGTYPE', 1, true) then break end
        return body@
      end
      key, base, whole = keys[first + INDEX], SIZE, #body@ < FRONT_BYTES and body@
      body@ = body@ ~= '' and body@

--@ parse
      if body@ and (byte(body@) or CLAIM_HERE) >= CLAIM_HERE then claim@, body@ = cut(body@) end
      if body@ then
        if #body@ < SIZE then break end
        local rings, rows, STORED
        rings, rows, ROW = unpack('FORM', body@)
        if not (rings == RINGS and rows == SIZE - 3 and MATCHES) then break end
        base = base + #claim@
        if base + (SLOTS) * ENTRY_BYTES ~= (whole and #whole or call('STRLEN', key)) then break end
      end

--@ open
local log$ = open_log(entries$, sum$, first$, slots$, key, base, whole)
base = base + slots$ * ENTRY_BYTES
trim(log$, now - window$)

--@ left
capacity$ - log$.sum

--@ charge
add_entry(log$, cost@, now)

--@ give back
take_from_entry(log$, mark$, amount@)

--@ counts until
counts_until(log$, window$)

--@ stored
log$.entries, log$.sum, log$.first, log$.slots

--@ replied
log$.sum, newest(log$), fits_at(log$, 1, capacity$, window$), fits_at(log$, cost@, capacity$, window$)

--@ write
          local ends = COUNTS_UNTIL
          local rings = new_rings({LOGS}, SIZE)
          body@ = pack('FORM', RINGS, SIZE - 3, VALUES) .. (rings or '')
          if not rings then
            call('SETRANGE', keys[first + INDEX], #claim@, body@)
            if ends > before@ then
              local life = LIVES + margin
              if claim@ ~= '' then life = max(life, call('PTTL', keys[first + INDEX])) end
              call('PEXPIRE', keys[first + INDEX], life)
            end
          else

--@ reply
claim@ .. (body@ and pack('REPLY_FORM', REPLY_SIZE, REPLIED) or '\0\0')
