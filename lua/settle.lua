-- settle.lua: settlements of charges whose states are arranged, and that return units.
-- One that charges more than before is rare.
--
-- Provides settle_arranged. Uses ALLOWED, replies, replied of fast.lua; states,
-- writes, HEAD_BYTES, SHAPE_WINDOW, SETTLED_LIMIT, SETTLED_LIMIT_BYTES, FIXED,
-- FIXED_BYTES, SLIDING, SLIDING_BYTES, BUCKET, BUCKET_BYTES, drain_time,
-- read_lone, lone_state of arranged.lua.

-- Returns to the limits of one charge what it was charged too much. Returns the bytes
-- to store, or nil if this is not that simple.
local function give_back_limits(state, packed, place, limits, charged, cost, now)
  local back, bytes = charged - cost, nil
  local from, left = 1, #state -- where the next record begins; bytes left
  for _ = 1, limits do
    local shape, quota, _, mark, mark_fraction, stored, record
    shape, quota, _, mark, mark_fraction, place = unpack(SETTLED_LIMIT, packed, place)
    local window = shape % SHAPE_WINDOW
    local kind = (shape - window) / SHAPE_WINDOW

    if kind == FIXED_WINDOW or kind == ALIGNED_WINDOW then
      local at, used
      if limits == 1 and (left == DIGITS or left == SHORT_BYTES) then
        at, used = read_lone(state, kind, window)
        if not at then return nil end
        left = 0
      else
        left = left - FIXED_BYTES
        if left < 0 then return nil end
        stored, at, used, from = unpack(FIXED, state, from)
        if stored ~= shape then return nil end
      end
      if mark == at then used = max(used - back, 0) end
      record = limits == 1 and lone_state(kind, window, at, used) or pack(FIXED, shape, at, used)

    elseif kind == SLIDING_WINDOW then
      left = left - SLIDING_BYTES
      if left < 0 then return nil end
      local start, current, previous
      stored, start, current, previous, from = unpack(SLIDING, state, from)
      if stored ~= shape then return nil end
      if mark == start then
        current = max(current - back, 0)
      elseif mark == start - window then
        previous = max(previous - back, 0)
      end
      record = pack(SLIDING, shape, start, current, previous)

    elseif kind == TOKEN_BUCKET or kind == LEAKY_BUCKET then
      left = left - BUCKET_BYTES
      if left < 0 then return nil end
      local at, fraction, charged_under, charged_at, capacity
      stored, at, fraction, charged_under, charged_at, capacity, from = unpack(BUCKET, state, from)
      if stored ~= shape or charged_under ~= quota or fraction >= quota then return nil end
      local drains = mark >= now and (at > now or at == now and fraction > 0)
      if drains and kind == TOKEN_BUCKET then
        -- What is still to drain between now and the mark comes back.
        local ms, part = drain_time(back, window, quota)
        if not ms then return nil end
        local due = mark - now
        if due < ms or due == ms and mark_fraction < part then ms, part = due, mark_fraction end
        at, fraction = at - ms, fraction - part
        if fraction < 0 then at, fraction = at - 1, fraction + quota end
        if at < now then at, fraction = now, 0 end
      elseif drains then
        return nil -- a client that leaves a queue is rare
      end
      record = pack(BUCKET, shape, at, fraction, quota, charged_at, capacity)

    else
      return nil
    end

    bytes = bytes and bytes .. record or record
  end
  if left > 0 then return nil end
  return bytes
end

-- Makes a settlement whose first charge has KEYS[first_key], and replies it. Returns
-- false if it does not, and then nothing is done. Reset times do not move forward, so
-- keys keep their expiry.
local function settle_arranged(packed, charges, first_key)
  local _, now = unpack('>I1I6', packed)
  local place = HEAD_BYTES + 1
  for i = 1, charges do
    local charged, cost, _, limits, first = unpack('>I7I7I6I1', packed, place)
    if cost > charged then return false end
    writes[i] = states[i]
    if states[i] then
      writes[i] = give_back_limits(states[i], packed, first, limits, charged, cost, now)
      if not writes[i] then return false end
    end
    place = first + limits * SETTLED_LIMIT_BYTES
  end
  replied = replied + 1
  replies[replied] = ALLOWED
  for i = 1, charges do
    local state = writes[i] or ''
    if writes[i] ~= states[i] then redis.call('SET', KEYS[first_key + i - 1], state, 'KEEPTTL') end
    replies[replied + 1] = pack('>I2', #state)
    replies[replied + 2] = state
    replied = replied + 2
  end
  return true
end
