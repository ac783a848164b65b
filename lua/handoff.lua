-- handoff.lua: the end of the script that makes one decision under a placement,
-- as package handoff has it: Find.
--
-- KEYS[i]  count      of a (policy, key), one for each charge
-- ARGV[1]  decision   packed as decide.lua says
-- ARGV[2]  placement  if counts arrive; packed:
--                     6 version
--                     6 backend that decides
--                     4 ms to remember the version of an arrival
--                     4 ms that its claim outlives that and the count
--                     for each charge 1 whether it arrives; if so:
--                       6 version under which it was released
--                       4 length and so many bytes, its state
-- Returns  the decision's reply. If a count is not here, nothing is done, and
--          instead 2; then for each charge 0 if its count is here; 1 if it is
--          missing, else 2, version, backend for which it left.
--
-- handoff_fast.lua comes before it. Uses read_decision, decide, reply, numbers of
-- decide.lua; parse, split_claim of state.lua; read_front, life_of, store of
-- stored.lua; server_clock, read_present, write_claim, unknown_kind of claim.lua.

local function read_placement(packed, charges)
  local p, place = {}
  if not packed then return p end
  p.version, p.backend, p.keep, p.margin, place = unpack('>I6I6I4I4', packed)
  for i = 1, charges do
    local due
    due, place = unpack('>I1', packed, place)
    if due == 1 then
      local release_version, length
      release_version, length, place = unpack('>I6I4', packed, place)
      p[i] = {release_version = release_version, state = string.sub(packed, place, place + length - 1)}
      place = place + length
    end
  end
  return p
end

-- Finds the count of c, which may be the arrival. Returns whether it is here.
local function find(c, p, arrival, d)
  local stored, has_rings
  if d.has_log then stored, has_rings = read_front(c.key, redis.pcall('GETRANGE', c.key, '0', FRONT_END)) else stored = redis.call('GET', c.key) end
  if type(stored) == 'table' then error(stored.err, 0) end
  c.claim, c.state = read_present(stored, d.now, has_rings and c.key)
  if has_rings and c.state then c.front_claim = split_claim(stored) end
  local claim = c.claim
  local left = claim and claim.left_for > 0
  if c.state and not left then
    return true
  elseif not arrival then
    c.missing = not left
    return false
  elseif left and not (claim.version < p.version or claim.version == p.version and claim.left_for == p.backend) then
    return false
  end
  -- A newer state was kept here if a move between these two versions brought the
  -- count here and released it again but never finished.
  if not left or claim.release_version <= arrival.release_version then
    c.state = arrival.state
  elseif c.front_claim then
    c.state = select(2, split_claim(redis.call('GET', c.key)))
  end
  c.front_claim = nil
  c.claim, c.arrived = nil, true -- put_arrival makes its claim
  return true
end

-- Stores a count that arrived, whatever is decided then. Its claim outlives what
-- other backends keep of the count. Returns false if it is of an unknown kind.
local function put_arrival(c, p, d)
  local records = parse(c.state)
  if not records then return false end
  local life = max(life_of(records, d.now), p.keep) + p.margin
  c.claim = {version = p.version, expires_at = server_clock() + life, left_for = 0}
  redis.call('SET', c.key, write_claim(c.claim) .. c.state, 'PX', life + d.margin)
  return true
end

-- As in plain.lua; and the key outlives the claim.
local function put(c, records, reset_at, d)
  local claim, life = '', life_of(records, d.now)
  if c.claim then
    claim = write_claim(c.claim)
    life = max(life, c.claim.expires_at - server_clock())
  end
  store(c, claim, records, reset_at > c.reset_at and life + d.margin or nil)
end

local function reply_location(c)
  if c.missing or c.arrived then -- an arrival was not stored
    reply(1)
  elseif c.claim and c.claim.left_for > 0 then
    reply(2)
    reply(c.claim.version)
    reply(c.claim.left_for)
  else
    reply(0)
  end
end

local d = read_decision(ARGV[1], 1)
if not d then return unknown_kind() end
local p, here = read_placement(ARGV[2], #d.charges), true
for i = 1, #d.charges do
  here = find(d.charges[i], p, p[i], d) and here
end
if not here then
  reply(2)
  for i = 1, #d.charges do reply_location(d.charges[i]) end
  return numbers
end
for i = 1, #d.charges do
  local c = d.charges[i]
  if c.arrived and not put_arrival(c, p, d) then return unknown_kind() end
end
if not decide(d, put) then return unknown_kind() end
return numbers
