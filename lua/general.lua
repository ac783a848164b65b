-- general.lua: the end of the general path: decides about counts that do not move.
-- It and the parts that it uses are one function, which is made when a decision needs
-- it: to make all of theirs is a good part of a call's cost.
--
-- Uses NUMBERS of fast.lua; states of arranged.lua; split_claim of state.lua;
-- read_front, life_of, store of stored.lua; read_decision, decide, reply, numbers, numbered of
-- decide.lua.
--
-- Returns a function that makes a decision whose first charge has KEYS[first_key],
-- and returns its reply.

-- The expiry is set when a reset time moves forward, and only then: relative to
-- the caller's now, so that no two clocks are compared.
local function put(c, records, reset_at, d)
  if c.state and reset_at <= c.reset_at then return store(c, c.claim, records, nil) end
  local life = life_of(records, d.now) + d.margin
  if c.claim ~= '' then life = max(life, redis.call('PTTL', c.key)) end
  store(c, c.claim, records, max(life, 1))
end

-- Reads the states of d's charges, of which logs may be long.
-- Returns false if a key holds no string.
local function get(d)
  for i = 1, #d.charges do
    local c = d.charges[i]
    local stored, has_rings = states[i], false
    if d.has_log and stored then stored, has_rings = read_front(c.key, stored) end
    if type(stored) == 'table' then return false end
    c.claim, c.state = split_claim(stored)
    if has_rings then c.front_claim = c.claim end
    if #c.claim == CLAIM_LEFT_BYTES then c.claim = '' end
  end
  return true
end

return function(packed, first_key)
  numbered = 0
  local d = read_decision(packed, first_key)
  -- What is wrong with one decision is replied as its own, and does not fail others.
  if not (d and get(d) and decide(d, put)) then reply(3) end
  return NUMBERS .. pack('>I2' .. string.rep('i8', numbered), numbered, spread(numbers, 1, numbered))
end
