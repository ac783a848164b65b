-- decide.lua: decide about charges and make them, all or none; or settle what
-- was charged before.
--
-- KEYS[i]  state     of a (policy, key), one for each charge, in the order of
--                    the decisions and their charges
--
-- ARGV[i]  decision  packed, numbers big-endian and unsigned:
--                    6 now, Unix ms
--                    4 margin, ms that a state outlives its last window
--                    1 operation, a sum: settlement 1; counts move between
--                      backends 2; they are required 4; they arrive 8; one
--                      that is over is as good as none to be required 16
--                    1 number of charges
--                    if counts arrive: 6 version, 6 place, 4 ms to keep it
--                    for each charge, with the next of KEYS:
--                      7 cost; to settle: 7 cost charged, 7 real cost
--                      1 number of limits, and for each:
--                        1 kind, 6 window ms, 7 quota, 7 capacity
--                        to settle: 6 mark, 7 fraction
--                      if counts arrive: 1 arrival (0 if this one does not);
--                        then there follow
--                        6 version by which it was released
--                        4 length and so many bytes, its state
--
-- Returns  numbers: for each decision 1 if it was allowed, else 0; then for
--          each limit used, reset_at, retry_at (0 if it fits, -1 never), and,
--          but for fixed windows, start_at (0 if not a leaky bucket that was
--          charged), mark, fraction. A fixed window's mark is its reset_at.
--          If a count is not here, nothing is done, and instead 2; then for
--          each charge 0 if its count is here; 1 if it is required and
--          missing, else 2, version, place to which it has gone.
--
-- Each decision first looks at all of its limits and only then charges.
-- Liveness is judged by what is stored against the caller's now, never by a
-- key's expiry, which only takes out the dead.

-- The expiry is set when a reset-at moves forward, and only then: relative to
-- the caller's now, so that no two clocks are compared.
local function write(c, records, stored, now, margin)
  local after = latest_reset_at(records, now)
  local life = after - now
  if c.arrived then
    -- The claim outlives what other backends keep of the count.
    life = max(life, c.before - now, c.claim.keep) + CLAIM_MARGIN
    c.claim.void_at = server_clock() + life
  elseif c.claim then
    life = max(life, c.claim.void_at - server_clock())
  end
  if c.claim then stored = pack('>I1I6I6', 8, c.claim.version, c.claim.void_at) .. stored end
  if c.arrived or after > c.before then
    redis.call('SET', c.key, stored, 'PX', life + margin)
  else
    redis.call('SET', c.key, stored, 'KEEPTTL')
  end
end

local function read_charge(key, decision, place, settles, arrives)
  local c, limits = {key = key, limits = {}}
  if not settles then
    c.cost, limits, place = unpack('>I7I1', decision, place)
  else
    c.charged, c.cost, limits, place = unpack('>I7I7I1', decision, place)
  end
  for i = 1, limits do
    local l = {}
    l.kind, l.window, l.quota, l.capacity, place = unpack('>I1I6I7I7', decision, place)
    if settles then l.mark, l.fraction, place = unpack('>I6I7', decision, place) end
    c.limits[i] = l
  end
  if arrives then
    c.arrival, place = unpack('>I1', decision, place)
    if c.arrival == 1 then
      local length
      c.parted, length, place = unpack('>I6I4', decision, place)
      c.arriving, place = string.sub(decision, place, place + length - 1), place + length
    end
  end
  return c, place
end

-- Finds the state of a charge's count, which may arrive with the decision.
-- Returns whether the count is here, or at least may begin here. As algorithm
-- has it: Find.
local function find(c, moves, required, live, home, now)
  local stored = redis.call('GET', c.key)
  c.claim, c.state = split(stored)
  local left = c.claim and c.claim.left > 0
  if not moves then
    if left then c.claim = nil end
    return true
  elseif c.state and not left then
    c.missing = required and live and latest_reset_at(parse(c.state), now) <= now
    return not c.missing
  elseif not home or c.arrival == 0 then
    c.missing = not c.state and required
    return c.state == nil and not c.missing
  elseif left and not (c.claim.version < home.version or c.claim.version == home.version and c.claim.left == home.place) then
    return false
  end
  -- What stayed here is newer if the count was here, and left, after what
  -- arrives was released.
  if not left or c.claim.parted <= c.parted then c.state = c.arriving end
  c.claim, c.arrived = {version = home.version, keep = home.keep, left = 0}, true
  return true
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
  write(c, c.records, encode(c.records), now, margin)
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
  if found or c.arrived then write(c, c.stored, encode(c.stored), now, margin) end
  report(c, now)
end

local function report_whereabouts(c)
  if c.missing then
    reply(1)
  elseif c.claim and c.claim.left > 0 then
    reply(2)
    reply(c.claim.version)
    reply(c.claim.left)
  else
    reply(0)
  end
end

local function decide(cs, settles, now, margin)
  local allowed = true
  for i = 1, #cs do
    local c = cs[i]
    c.stored = parse(c.state)
    c.before = latest_reset_at(c.stored, now)
    c.records, c.own = arrange(c.stored, c.limits, now)
    c.fits = {}
    for j = 1, #c.limits do
      local l = c.limits[j]
      c.fits[j] = settles or c.cost <= l.capacity - used(c.records[j], l, now)
      allowed = allowed and c.fits[j]
    end
  end
  reply(allowed and 1 or 0)
  for i = 1, #cs do
    local c = cs[i]
    if settles then
      settle(c, now, margin)
    elseif allowed and c.cost > 0 then
      charge_and_report(c, c.cost, now, margin)
    else
      if c.arrived then write(c, c.stored, c.state or '', now, margin) end
      report(c, now)
    end
  end
end

local next_key = 1
for d = 1, #ARGV do
  local now, margin, op, charges, place = unpack('>I6I4I1I1', ARGV[d])
  local settles, moves, required, live, home = op % 2 == 1, op % 4 >= 2, op % 8 >= 4, op % 32 >= 16, nil
  if op % 16 >= 8 then
    home = {}
    home.version, home.place, home.keep, place = unpack('>I6I6I4', ARGV[d], place)
  end
  local cs, here = {}, true
  for i = 1, charges do
    cs[i], place = read_charge(KEYS[next_key], ARGV[d], place, settles, home)
    next_key = next_key + 1
    here = find(cs[i], moves, required, live, home, now) and here
  end
  if here then
    decide(cs, settles, now, margin)
  else
    reply(2)
    for i = 1, charges do report_whereabouts(cs[i]) end
  end
end
return replies
