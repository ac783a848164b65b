-- take.lua: takes of any number of charges and limits whose states are arranged.
--
-- Provides take_arranged. Uses REFUSED, ALLOWED, replies, replied of
-- fast.lua; states, writes, HEAD_BYTES, SHAPE_WINDOW, LIMIT, LIMIT_BYTES, FIXED, FIXED_BYTES, SLIDING,
-- SLIDING_BYTES, LOG, LOG_BYTES, BUCKET, BUCKET_BYTES, drain_time, read_lone, lone_state
-- of arranged.lua.

-- How many dead entries of a log are dropped here, where it is done one by one.
local MAX_DROPPED = 16

-- Drops dead entries, and charges cost to a log. Returns its number of entries, their
-- sum, and the entries; and the latest reset times before, now if nothing counted, and
-- after; false if the cost does not fit, and nil if this is not that simple.
local function charge_log(entries, sum, log, window, capacity, cost, now)
  local dead, before = 0, now
  while dead < entries do
    local at, amount = unpack(ENTRY, log, dead * ENTRY_BYTES + 1)
    if at > now - window then break end
    if dead == MAX_DROPPED then return nil end
    dead, sum = dead + 1, sum - amount
  end
  if dead > 0 then entries, log = entries - dead, string.sub(log, dead * ENTRY_BYTES + 1) end
  local last, amount = now, 0 -- the entry to charge
  if entries > 0 then
    local newest, newest_amount = unpack(ENTRY, log, #log - ENTRY_BYTES + 1)
    before = max(newest + window, now)
    if newest >= now then -- time that stepped back logs at the last instant
      last, amount = newest, newest_amount
      entries, log = entries - 1, string.sub(log, 1, #log - ENTRY_BYTES)
    end
  end
  if cost > capacity - sum then return false end -- else an entry holds it: capacities of logs are small
  return entries + 1, sum + cost, log .. pack(ENTRY, last, amount + cost), before, last + window
end

-- Charges cost to the limits of one charge. Returns the bytes to store, the latest
-- reset times before and after, and the place in packed that follows; false if cost
-- does not fit, and nil if this is not that simple.
local function charge_limits(state, packed, place, limits, cost, now)
  local bytes, before, after = nil, now, now
  local from, left = 1, state and #state or 0 -- where the next record begins; bytes left
  local entries_in_all = 0
  if left >= FRONT_BYTES then return nil end -- perhaps not the whole state
  for _ = 1, limits do
    local shape, quota, capacity, record, reset_at
    shape, quota, capacity, place = unpack(LIMIT, packed, place)
    local window = shape % SHAPE_WINDOW
    local kind = (shape - window) / SHAPE_WINDOW

    if kind == FIXED_WINDOW or kind == ALIGNED_WINDOW then
      local at, used = 0, 0
      if limits == 1 and (left == DIGITS or left == SHORT_BYTES) then
        at, used = read_lone(state, kind, window)
        if not at then return nil end
        left = 0
      elseif state then
        left = left - FIXED_BYTES
        if left < 0 then return nil end
        local stored
        stored, at, used, from = unpack(FIXED, state, from)
        if stored ~= shape then return nil end
      end
      if at > now then
        if at > before then before = at end
      else
        at, used = now + window, 0
        if kind == ALIGNED_WINDOW then at = at - now % window end
        if at > MAX_INSTANT then return nil end
      end
      if cost > capacity - used then return false end
      used, reset_at = used + cost, at
      record = limits == 1 and lone_state(kind, window, at, used) or pack(FIXED, shape, at, used)

    elseif kind == SLIDING_WINDOW then
      local start, current, previous = 0, 0, 0
      if state then
        left = left - SLIDING_BYTES
        if left < 0 then return nil end
        local stored
        stored, start, current, previous, from = unpack(SLIDING, state, from)
        if stored ~= shape then return nil end
      end
      local elapsed = now - start
      if elapsed < 0 then
        elapsed = 0 -- time stepped back
      elseif elapsed >= window then
        elapsed = elapsed % window
        previous = start == now - elapsed - window and current or 0
        start, current = now - elapsed, 0
      end
      reset_at = start + 2 * window
      local share = previous * (window - elapsed)
      if share >= MAX_COUNT or reset_at > MAX_INSTANT then return nil end
      local rest = share % window
      local used = current + (share - rest) / window
      if rest > 0 then used = used + 1 end
      -- What is in the previous window alone ends before the charge does.
      if current > 0 and reset_at > before then before = reset_at end
      if start > now then reset_at = now + 2 * window end -- see life_of
      if cost > capacity - used then return false end
      record = pack(SLIDING, shape, start, current + cost, previous)

    elseif kind == SLIDING_LOG then
      local entries, sum, log = 0, 0, ''
      if state then
        left = left - LOG_BYTES
        if left < 0 then return nil end
        local stored, first
        stored, entries, sum, first = unpack(LOG, state, from)
        left, from = left - entries * ENTRY_BYTES, first + entries * ENTRY_BYTES
        if stored ~= shape or left < 0 then return nil end
        log = string.sub(state, first, from - 1)
      end
      local reset_before
      entries, sum, log, reset_before, reset_at = charge_log(entries, sum, log, window, capacity, cost, now)
      if not entries then return entries end
      entries_in_all = entries_in_all + entries
      if entries_in_all > MAX_IN_ROWS or reset_at > MAX_INSTANT then return nil end
      if reset_before > before then before = reset_before end
      record = pack(LOG, shape, entries, sum) .. log

    elseif kind == TOKEN_BUCKET or kind == LEAKY_BUCKET then
      local at, fraction, charged_at = now, 0, now
      if state then
        left = left - BUCKET_BYTES
        if left < 0 then return nil end
        local stored, charged_under, _
        stored, at, fraction, charged_under, charged_at, _, from = unpack(BUCKET, state, from)
        if stored ~= shape or charged_under ~= quota or fraction >= quota then return nil end
      end
      if at < now then at, fraction = now, 0 end
      if charged_at < now then charged_at = now end
      local level = (at - now) * quota + fraction
      if level >= MAX_COUNT then return nil end
      local rest = level % window
      local used = (level - rest) / window
      if rest > 0 then used = used + 1 end
      reset_at = at
      if fraction > 0 then reset_at = at + 1 end
      if reset_at > before then before = reset_at end
      if cost > capacity - used then return false end
      local ms, part = drain_time(cost, window, quota)
      if not ms then return nil end
      at, fraction = at + ms, fraction - (quota - part)
      if fraction >= 0 then at = at + 1 else fraction = fraction + quota end
      reset_at = at
      if fraction > 0 then reset_at = at + 1 end
      if reset_at > MAX_INSTANT then return nil end
      record = pack(BUCKET, shape, at, fraction, quota, charged_at, capacity)

    else
      return nil
    end

    if reset_at > after then after = reset_at end
    bytes = bytes and bytes .. record or record
  end
  if left > 0 then return nil end
  return bytes, before, after
end

-- For how many ms the keys of a decision's charges live from now on, if their reset
-- times move forward.
local lives = {nil, nil, nil}

-- Makes a decision whose first charge has KEYS[first_key], and replies it. Returns
-- false if it does not, and then nothing is done.
local function take_arranged(packed, charges, first_key)
  local _, now, margin = unpack('>I1I6I4', packed)
  if now > MAX_INSTANT then return false end
  local allowed, place = true, HEAD_BYTES + 1
  for i = 1, charges do
    local cost, limits, first = unpack('>I7I1', packed, place)
    local bytes, before, after = charge_limits(states[i], packed, first, limits, cost, now)
    if bytes == nil then return false end
    allowed = allowed and bytes
    place = first + limits * LIMIT_BYTES
    writes[i] = cost > 0 and bytes
    lives[i] = bytes and (not states[i] or after > before) and after - now + margin
  end
  replied = replied + 1
  replies[replied] = allowed and ALLOWED or REFUSED
  for i = 1, charges do
    local state = states[i] or ''
    if allowed and writes[i] then
      state = writes[i]
      if lives[i] then
        redis.call('SET', KEYS[first_key + i - 1], state, 'PX', lives[i])
      else
        redis.call('SET', KEYS[first_key + i - 1], state, 'KEEPTTL')
      end
    end
    replies[replied + 1] = pack('>I2', #state)
    replies[replied + 2] = state
    replied = replied + 2
  end
  return true
end
