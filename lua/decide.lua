-- decide.lua: decides about charges and makes them, all or none; or settles what
-- was charged before.
--
-- Provides read_decision, decide, reply, numbers, numbered. Uses algorithm_of of
-- kinds.lua; parse, latest_reset_at of state.lua; nearest_limit, arrange, hold of
-- records.lua. The part that follows finds the states, and stores them.
--
-- A decision is packed, numbers big-endian and unsigned:
--   1 times that it is made, each time with other keys; the part that follows counts
--   6 now, Unix ms
--   4 margin, ms that a state outlives its last window
--   1 operation: take 0, settlement 1; and 2 more if a limit is a sliding log
--   1 number of charges, and for each, with the next of KEYS:
--     7 cost; to settle: 7 cost charged, 7 real cost, 6 charged at
--     1 number of limits, and for each:
--       1 kind, 6 window ms, 7 quota, 7 capacity
--       to settle: 6 mark, 7 fraction
--   and of some takes 27 bytes more, which prelude.lua describes
--
-- Its reply is numbers: 3, and nothing more, if it cannot be made: a limit is of an unknown
-- kind, or a key holds something else than a count. Nothing is charged for it then.
-- Else it is 1 if it was allowed, else 0; then for each limit used, reset_at,
-- retry_at (0 if it fits, -1 never), next_at (when one unit fits; 0 if one does now),
-- start_at (0 if not a queue that was charged), mark, fraction.

local numbers, numbered = {}, 0 -- the reply

local function reply(n)
  numbered = numbered + 1
  numbers[numbered] = n
end

local function read_limit(packed, place, settles)
  local kind, window, quota, capacity, after = unpack('>I1I6I7I7', packed, place)
  local l = {algorithm = algorithm_of(kind), kind = kind, window = window, quota = quota, capacity = capacity}
  if settles then l.mark, l.fraction, after = unpack('>I6I7', packed, after) end
  return l, after
end

local function read_charge(key, packed, place, settles)
  local cost, count
  local charged, taken_at = 0, 0
  if settles then
    charged, cost, taken_at, count, place = unpack('>I7I7I6I1', packed, place)
  else
    cost, count, place = unpack('>I7I1', packed, place)
  end
  local limits = {}
  for i = 1, count do
    limits[i], place = read_limit(packed, place, settles)
    if not limits[i].algorithm then return nil end
  end
  return {
    key = key, cost = cost, charged = charged, taken_at = taken_at, limits = limits,
    state = nil, claim = nil, front_claim = nil, -- set by the part that follows
    stored = nil, reset_at = nil, records = nil, fits = nil, -- set by decide
  }, place
end

-- Reads a decision whose first charge has KEYS[first_key]; with it, the number of its
-- charges. Returns nil for the decision if a limit is of an unknown kind.
local function read_decision(packed, first_key)
  local _, now, margin, op, count, place = unpack('>I1I6I4I1I1', packed)
  local settles, charges = bit.band(op, SETTLE) ~= 0, {}
  for i = 1, count do
    charges[i], place = read_charge(KEYS[first_key + i - 1], packed, place, settles)
    if not charges[i] then return nil, count end
  end
  return {now = now, margin = margin, settles = settles, has_log = bit.band(op, HAS_LOG) ~= 0, charges = charges}, count
end

local nothing_held = {used = 0, reset_at = 0, retry_at = 0, next_at = 0}

-- Replies about l, whose record is r, of which h is held.
local function reply_limit(l, r, h, now, retry_at, start_at, mark, fraction)
  local used = l.algorithm.used(r, l, now)
  reply(max(used, h.used))
  reply(max(l.algorithm.reset_at(r, now), h.reset_at))
  reply(retry_at)
  reply(max(used >= l.capacity and l.algorithm.retry_at(r, l, 1, now) or 0, h.next_at))
  reply(start_at)
  reply(mark)
  reply(fraction)
end

-- Replies what c's limits are, and charges nothing.
local function look(c, now)
  local held = hold(c.records, c.limits, c.cost, now)
  for i = 1, #c.limits do
    local l, r, retry_at = c.limits[i], c.records[i], 0
    local h, used = held and held[i] or nothing_held, l.algorithm.used(r, l, now)
    if not c.fits[i] then
      retry_at = -1
      if c.cost <= l.capacity then
        retry_at = max(h.retry_at, c.cost > l.capacity - used and l.algorithm.retry_at(r, l, c.cost, now) or 0)
      end
    end
    reply_limit(l, r, h, now, retry_at, 0, 0, 0)
  end
end

-- Charges the limits, and the records of other policies that live.
local function charge(c, cost, d, put)
  local results = {}
  for i = 1, #c.limits do
    local l, r = c.limits[i], c.records[i]
    local mark, fraction, start_at = l.algorithm.charge(r, l, cost, d.now)
    r.ends_at = nil
    results[i] = {mark = mark, fraction = fraction, start_at = start_at}
  end
  for i = #c.limits + 1, #c.records do
    local r = c.records[i]
    r.ends_at = r.ends_at or r.algorithm.reset_at(r, d.now)
    r.algorithm.join(r, c.limits, c.records, cost, d.now)
  end
  local held = hold(c.records, c.limits, 0, d.now)
  for i = 1, #c.limits do
    local l, r, h, result = c.limits[i], c.records[i], held and held[i] or nothing_held, results[i]
    reply_limit(l, r, h, d.now, 0, result.start_at, result.mark, result.fraction)
  end
  put(c, c.records, latest_reset_at(c.records, d.now), d)
end

local function settle(c, d, put)
  if c.cost > c.charged then return charge(c, c.cost - c.charged, d, put) end
  local found, alone = {}, c.records == c.stored -- there are no records of others
  for i = 1, #c.limits do
    local l = c.limits[i]
    for j = alone and i or 1, alone and i or #c.stored do
      local r = c.stored[j]
      if r.kind == l.kind and r.window == l.window then found[i] = l.algorithm.give_back(r, l, c, d.now) end
    end
  end
  for j = 1, alone and 0 or #c.stored do
    local r = c.stored[j]
    local own, nearest = nearest_limit(r, c.limits)
    if not own and (not nearest or found[nearest]) and r.algorithm.reset_at(r, d.now) > d.now then
      r.algorithm.give_back_joined(r, c, d.now)
    end
  end
  if #c.stored > 0 then put(c, c.stored, latest_reset_at(c.stored, d.now), d) end
  c.records = arrange(c.stored, c.limits, d.now)
  look(c, d.now)
end

-- Carries out a decision. Each of its charges has its state as c.state, nil if
-- there is none; if that is only its front, c.front_claim is the claim before it.
-- put(c, records, reset_at, d) stores records that changed; c.reset_at was their latest
-- reset_at before. All limits are looked at, and only then charged. Returns false, with nothing done, if a state is of an unknown kind.
--
-- Liveness is judged by what is stored against the caller's now, never by a
-- key's expiry, which only removes stale data.
local function decide(d, put)
  local allowed = true
  for i = 1, #d.charges do
    local c = d.charges[i]
    c.stored = parse(c.state, c.front_claim and c.key, c.front_claim and #c.front_claim)
    if not c.stored then return false end
    c.reset_at = latest_reset_at(c.stored, d.now)
    c.records = arrange(c.stored, c.limits, d.now)
    c.fits = {}
    local held = not d.settles and hold(c.records, c.limits, c.cost, d.now)
    for j = 1, #c.limits do
      local l = c.limits[j]
      c.fits[j] = d.settles or c.cost <= l.capacity - max(l.algorithm.used(c.records[j], l, d.now), held and held[j] and held[j].used or 0)
      allowed = allowed and c.fits[j]
    end
  end
  reply(allowed and 1 or 0)
  for i = 1, #d.charges do
    local c = d.charges[i]
    if d.settles then
      settle(c, d, put)
    elseif allowed and c.cost > 0 then
      charge(c, c.cost, d, put)
    else
      look(c, d.now)
    end
  end
  return true
end
