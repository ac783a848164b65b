-- arranged.lua: takes of any number of charges and limits, where each key's records
-- are those of its limits, in their order, and nothing is large: the common case by
-- far. It is the general path in one piece, without a table for a record or a limit;
-- what it does not do, it leaves to that.
--
-- Provides take_arranged. Uses replies and replied of fast.lua, and what prelude.lua
-- provides.

local FIXED_WINDOW, ALIGNED_WINDOW, SLIDING_WINDOW, TOKEN_BUCKET, LEAKY_BUCKET = 1, 2, 3, 5, 6 -- kinds.lua has them all

-- Products below it are exact.
local EXACT = 9007199254740992

-- Charges cost to the limits of one charge, or, if looks, charges nothing. Adds their
-- replies behind the first n. Returns the place in packed that follows; then the
-- bytes to store, and the latest reset times before and after, or, if looks, whether
-- cost fits. Returns false if it does not fit and was to be charged, nil if the
-- state is not that simple.
local function take_limits(n, state, packed, place, limits, cost, now, looks)
  local bytes, before, after, all_fit = '', now, now, true
  local from, length = 1, state and #state or 0
  for i = 1, limits do
    local kind, window, quota, capacity
    kind, window, quota, capacity, place = unpack('>I1I6I7I7', packed, place)
    local stored_kind, stored_window = kind, window
    local used, reset_at, retry_at, fits = 0, now, 0, true
    local start_at, mark, mark_fraction = 0, 0, 0

    if kind == FIXED_WINDOW or kind == ALIGNED_WINDOW then
      local at, count = 0, 0
      local alone = limits == 1 and window < SHORT_WINDOW
      if alone and length == SHORT_BYTES then
        local shape
        shape, at, count, from = unpack(SHORT_FORM, state)
        if shape ~= kind * SHORT_WINDOW + window then return nil end
      elseif state then
        if from + 19 > length then return nil end
        stored_kind, stored_window, at, count, from = unpack('>I1I6I6I7', state, from)
      end
      if at > now then used, reset_at = count, at end
      fits = cost <= capacity - used
      if looks then
        if not fits then retry_at = at end
      elseif fits then
        if reset_at > before then before = reset_at end
        if at <= now then
          at = kind == ALIGNED_WINDOW and now - now % window + window or now + window
          if at > MAX_INSTANT then return nil end
        end
        used, reset_at = used + cost, at
        if alone and used < SHORT_COUNT then
          bytes = pack(SHORT_FORM, kind * SHORT_WINDOW + window, at, used)
        else
          bytes = bytes .. pack('>I1I6I6I7', kind, window, at, used)
        end
      end

    elseif kind == SLIDING_WINDOW then
      local start, current, previous = 0, 0, 0
      if state then
        if from + 26 > length then return nil end
        stored_kind, stored_window, start, current, previous, from = unpack('>I1I6I6I7I7', state, from)
      end
      local elapsed = now - start
      if elapsed < 0 then
        elapsed = 0 -- time stepped back
      elseif elapsed >= window then
        elapsed = elapsed % window
        previous = start == now - elapsed - window and current or 0
        start, current = now - elapsed, 0
      end
      local share = previous * (window - elapsed)
      if share >= EXACT or start > MAX_INSTANT - 2 * window then return nil end
      local rest = share % window
      used = (share - rest) / window + current
      if rest > 0 then used = used + 1 end
      if current > 0 then
        reset_at = start + 2 * window
      elseif previous > 0 then
        reset_at = start + window
      end
      fits = cost <= capacity - used
      if looks then
        if used > EXACT then return nil end
        if not fits and cost <= capacity then
          local room, opened = capacity - cost - current, start
          if room < 0 then
            room, opened, previous = room + current, start + window, current
          end
          local product = room * window
          if product >= EXACT then return nil end
          local inside = (product - product % previous) / previous
          retry_at = opened + (inside < window and window - inside or 0)
        end
      elseif fits then
        if reset_at > before then before = reset_at end
        used, reset_at, mark = used + cost, start + 2 * window, start
        bytes = bytes .. pack('>I1I6I6I7I7', kind, window, start, current + cost, previous)
      end

    elseif kind == TOKEN_BUCKET or kind == LEAKY_BUCKET then
      local at, fraction = now, 0
      if state then
        if from + 32 > length then return nil end
        local stored_quota, _
        stored_kind, stored_window, at, fraction, stored_quota, _, from = unpack('>I1I6I6I7I7I6', state, from)
        if stored_quota ~= quota or fraction >= quota then return nil end
      end
      if at < now then at, fraction = now, 0 end
      local level = (at - now) * quota + fraction
      if level >= EXACT then return nil end
      local rest = level % window
      used = (level - rest) / window
      if rest > 0 then used = used + 1 end
      reset_at = fraction > 0 and at + 1 or at
      fits = cost <= capacity - used
      if looks then
        if not fits and cost <= capacity then
          local product = (capacity - cost) * window
          if product >= EXACT then return nil end
          rest = product % quota
          retry_at = at - (product - rest) / quota
          if rest < fraction then retry_at = retry_at + 1 end
        end
      elseif fits then
        local product = cost * window
        if product >= EXACT then return nil end
        if reset_at > before then before = reset_at end
        if kind == LEAKY_BUCKET then start_at = reset_at end
        rest = product % quota
        at = at + (product - rest) / quota
        if fraction >= quota - rest then
          at, fraction = at + 1, fraction - (quota - rest)
        else
          fraction = fraction + rest
        end
        if at >= MAX_INSTANT then return nil end
        used, reset_at, mark, mark_fraction = used + cost, fraction > 0 and at + 1 or at, at, fraction
        bytes = bytes .. pack('>I1I6I6I7I7I6', kind, window, at, fraction, quota, now)
      end
    else
      return nil
    end

    if stored_kind ~= kind or stored_window ~= window then return nil end
    if looks then
      if not fits then
        all_fit = false
        if cost > capacity then retry_at = -1 end
      end
    elseif fits then
      if reset_at > after then after = reset_at end
    else
      return false
    end
    replies[n + 1] = used
    replies[n + 2] = reset_at
    replies[n + 3] = retry_at
    n = n + 3
    if kind > ALIGNED_WINDOW then
      replies[n + 1] = start_at
      replies[n + 2] = mark
      replies[n + 3] = mark_fraction
      n = n + 3
    end
  end
  if state and from <= length then return nil end
  if looks then return place, n, all_fit end
  return place, n, bytes, before, after
end

-- What the charges of one decision have stored, and are to store; and whether their
-- keys keep their expiry, else for how long they live.
local states, writes, lives = {}, {}, {}

-- Replies that a decision is refused, and what its limits are.
local function refuse(packed, charges, place, now)
  local n = replied + 1
  for i = 1, charges do
    local cost, limits
    cost, limits, place = unpack('>I7I1', packed, place)
    place, n = take_limits(n, states[i], packed, place, limits, cost, now, true)
    if not place then return false end
  end
  replies[replied + 1] = 0
  replied = n
  return true
end

-- Makes a decision whose first charge has KEYS[first_key], and replies it. Returns
-- false, with nothing done, if it is one for the general path.
local function take_arranged(packed, first_key)
  local now, margin, op, charges, place = unpack('>I6I4I1I1', packed)
  if op ~= 0 or now > MAX_INSTANT then return false end
  local first, n = place, replied + 1
  for i = 1, charges do states[i] = redis.pcall('GET', KEYS[first_key + i - 1]) end
  for i = 1, charges do
    local cost, limits, fits, before, after
    cost, limits, place = unpack('>I7I1', packed, place)
    place, n, fits, before, after = take_limits(n, states[i], packed, place, limits, cost, now, cost == 0)
    if place == nil then return false end
    if not place or not fits then return refuse(packed, charges, first, now) end
    writes[i] = cost > 0 and fits
    lives[i] = cost > 0 and (not states[i] or after > before) and after - now + margin
  end
  for i = 1, charges do
    if not writes[i] then -- it costs nothing
    elseif lives[i] then
      redis.call('SET', KEYS[first_key + i - 1], writes[i], 'PX', lives[i])
    else
      redis.call('SET', KEYS[first_key + i - 1], writes[i], 'KEEPTTL')
    end
  end
  replies[replied + 1] = 1
  replied = n
  return true
end
