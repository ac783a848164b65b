-- decide.lua: decide about charges and make them, all or none; or settle what
-- was charged before.
--
-- KEYS[i]  state     of a (policy, key), one for each charge, in the order of
--                    the decisions and their charges
--
-- ARGV[i]  decision  packed, numbers big-endian and unsigned:
--                    6 now, Unix ms
--                    4 margin, ms that a state outlives its last window
--                    1 operation: 0 for a take and 1 for a settlement
--                    1 number of charges, and for each, with the next of KEYS:
--                      7 cost; to settle: 7 cost charged, 7 real cost
--                      1 number of limits, and for each:
--                        1 kind, 6 window ms, 7 quota, 7 capacity
--                        to settle: 6 mark, 7 fraction
--
-- Returns  numbers: for each decision 1 if it was allowed, else 0; then for
--          each limit used, reset_at, retry_at (0 if it fits, -1 never), and,
--          but for fixed windows, start_at (0 if not a leaky bucket that was
--          charged), mark, fraction. A fixed window's mark is its reset_at.
--
-- Each decision first looks at all of its limits and only then charges.
-- Liveness is judged by what is stored against the caller's now, never by a
-- key's expiry, which only takes out the dead.

-- The expiry is set when a reset-at moves forward, and only then: relative to
-- the caller's now, so that no two clocks are compared.
local function write(key, records, before, now, margin)
  local after = latest_reset_at(records, now)
  if after > before then
    redis.call('SET', key, encode(records), 'PX', after - now + margin)
  else
    redis.call('SET', key, encode(records), 'KEEPTTL')
  end
end

local function read_charge(key, decision, place, op)
  local c, limits = {key = key, limits = {}}
  if op == 0 then
    c.cost, limits, place = unpack('>I7I1', decision, place)
  else
    c.charged, c.cost, limits, place = unpack('>I7I7I1', decision, place)
  end
  for i = 1, limits do
    local l = {}
    l.kind, l.window, l.quota, l.capacity, place = unpack('>I1I6I7I7', decision, place)
    if op == 1 then l.mark, l.fraction, place = unpack('>I6I7', decision, place) end
    c.limits[i] = l
  end
  return c, place
end

local replies = {}
local function reply(n) replies[#replies + 1] = n end

local function reply_limit(l, l_used, l_reset_at, l_retry_at, start_at, mark, fraction)
  reply(l_used)
  reply(l_reset_at)
  reply(l_retry_at)
  if l.kind > ALIGNED_WINDOW then
    reply(start_at)
    reply(mark)
    reply(fraction)
  end
end

local function report(c, now)
  for i = 1, #c.limits do
    local l, r = c.limits[i], c.records[i]
    local l_used, l_retry_at = used(r, l, now), 0
    if not c.fits[i] then l_retry_at = retry_at(r, l, c.cost, now) end
    reply_limit(l, l_used, reset_at(r, now), l_retry_at, 0, 0, 0)
  end
end

local function charge_and_report(c, cost, now, margin)
  for i = 1, #c.limits do
    local l, r, start_at = c.limits[i], c.records[i], 0
    if l.kind == LEAKY_BUCKET then start_at = reset_at(r, now) end
    local mark, fraction = charge(r, l, cost, now)
    reply_limit(l, used(r, l, now), reset_at(r, now), 0, start_at, mark, fraction)
  end
  write(c.key, c.records, c.before, now, margin)
end

local function settle(c, now, margin)
  if c.cost > c.charged then
    charge_and_report(c, c.cost - c.charged, now, margin)
    return
  end
  local found = false
  for i = 1, #c.limits do
    local l = c.limits[i]
    if c.own[i] then
      found = true
      give_back(c.records[i], l, l.mark, l.fraction, c.charged - c.cost, now)
    end
  end
  if found then write(c.key, c.stored, c.before, now, margin) end
  report(c, now)
end

local next_key = 1
for d = 1, #ARGV do
  local now, margin, op, charges, place = unpack('>I6I4I1I1', ARGV[d])
  local cs, allowed = {}, true
  for i = 1, charges do
    local c
    c, place = read_charge(KEYS[next_key], ARGV[d], place, op)
    next_key = next_key + 1
    c.stored = parse(redis.call('GET', c.key))
    c.before = latest_reset_at(c.stored, now)
    c.records, c.own = arrange(c.stored, c.limits, now)
    c.fits = {}
    for j = 1, #c.limits do
      local l = c.limits[j]
      c.fits[j] = op == 1 or c.cost <= l.capacity - used(c.records[j], l, now)
      allowed = allowed and c.fits[j]
    end
    cs[i] = c
  end
  reply(allowed and 1 or 0)
  for i = 1, charges do
    local c = cs[i]
    if op == 1 then
      settle(c, now, margin)
    elseif allowed and c.cost > 0 then
      charge_and_report(c, c.cost, now, margin)
    else
      report(c, now)
    end
  end
end
return replies
