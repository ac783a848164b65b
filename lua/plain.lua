-- plain.lua: the end of the script that decides about counts that do not move.
--
-- KEYS[i]  state     of a (policy, key), one for each charge, in the order of
--                    the decisions and their charges
-- ARGV[i]  decision  packed as decide.lua says
-- Returns  the decisions' replies, one after the other.
--
-- A claim in front of a state is of no interest here: the count continues from
-- the state. One that says that the count is here stays in front, for processes
-- that still move counts.

-- The expiry is set when a reset time moves forward, and only then: relative to
-- the caller's now, so that no two clocks are compared.
local function put(c, records, reset_at, d)
  if c.state and reset_at <= c.reset_at then return store(c, c.claim, records, nil) end
  local life = reset_at - d.now + d.margin
  if c.claim ~= '' then life = max(life, redis.call('PTTL', c.key)) end
  store(c, c.claim, records, max(life, 1))
end

-- Reads the states of d's charges. Returns false if a key holds no string.
local function get(d)
  for i = 1, #d.charges do
    local c = d.charges[i]
    local stored, has_rings
    if c.has_log then stored, has_rings = read_front(c.key) else stored = redis.pcall('GET', c.key) end
    if type(stored) == 'table' then return false end
    c.claim, c.state = split_claim(stored)
    if has_rings then c.front_claim = c.claim end
    if #c.claim == CLAIM_LEFT_BYTES then c.claim = '' end
  end
  return true
end

-- What is wrong with one decision is replied as its own, and does not fail others.
local next_key = decided + 1
for i = decided + 1, #ARGV do
  local d, charges = read_decision(ARGV[i], next_key)
  next_key = next_key + charges
  if not (d and get(d) and decide(d, put)) then reply(3) end
end
return replies
