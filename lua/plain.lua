-- plain.lua: the end of the script that decides about counts that do not move.
--
-- KEYS[i]  state     of a (policy, key), one for each charge, in the order of
--                    the decisions and their charges
-- ARGV[i]  decision  packed as decide.lua says
-- Returns  the decisions' replies, one after the other. An error says nothing
--          of decisions before the one that failed.
--
-- A claim in front of a state is of no interest here: the count continues from
-- the state. One that says that the count is here stays in front, for processes
-- that still move counts.

-- The expiry is set when a reset time moves forward, and only then: relative to
-- the caller's now, so that no two clocks are compared.
local function put(c, state, reset_at, d)
  if reset_at <= c.reset_at then
    redis.call('SET', c.key, c.claim .. state, 'KEEPTTL')
    return
  end
  local life = reset_at - d.now + d.margin
  if c.claim ~= '' then life = max(life, redis.call('PTTL', c.key)) end
  redis.call('SET', c.key, c.claim .. state, 'PX', life)
end

local next_key = 1
for i = 1, #ARGV do
  local d = read_decision(ARGV[i], next_key)
  if not d then return unknown_kind() end
  next_key = next_key + #d.charges
  for j = 1, #d.charges do
    local c = d.charges[j]
    c.claim, c.state = split_claim(redis.call('GET', c.key))
    if #c.claim == CLAIM_LEFT_BYTES then c.claim = '' end
  end
  if not decide(d, put) then return unknown_kind() end
end
return replies
