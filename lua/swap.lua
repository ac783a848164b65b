-- swap.lua: stores states in the place of others, if these are still there. What no
-- script of decide.lua decides is decided by the caller, which reads by this script, and
-- stores by it.
--
-- KEYS[i]      state  of a (policy, key), for each charge of one decision
-- ARGV         none to read; else for each state
--   ARGV[3i-2] what is stored, '' if nothing is
--   ARGV[3i-1] what to store, '' to leave it as it is
--   ARGV[3i]   for how many ms at least, 0 to keep the key's expiry
-- Returns      '' if the states were stored; else this server's clock, in Unix ms, and the
--              states, each '' if there is none

local stored, are_same = {}, #ARGV > 0
for i = 1, #KEYS do
  stored[i + 1] = redis.call('GET', KEYS[i]) or ''
  are_same = are_same and stored[i + 1] == ARGV[3 * i - 2]
end
if are_same then
  for i = 1, #KEYS do
    local state, life = ARGV[3 * i - 1], tonumber(ARGV[3 * i])
    if state ~= '' and life > 0 then
      redis.call('SET', KEYS[i], state, 'PX', math.max(life, redis.call('PTTL', KEYS[i])))
    elseif state ~= '' then
      redis.call('SET', KEYS[i], state, 'KEEPTTL')
    end
  end
  return {}
end
local time = redis.call('TIME')
stored[1] = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
return stored
