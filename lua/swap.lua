-- swap.lua: replaces states if they are unchanged. If no script of decide.lua decides, the
-- caller does: it reads the states by this script, and stores the new ones by it.
--
-- KEYS[i]      state  of a (policy, key), for each charge of one decision
-- ARGV         empty to read; otherwise for each state
--   ARGV[3i-2] the stored state, '' for a missing key
--   ARGV[3i-1] the new state, '' to keep the stored one
--   ARGV[3i]   the least ms that the key lives, 0 to keep its expiry
-- Returns      an empty array if the states were stored; otherwise this server's clock, in
--              Unix ms, and the stored states, '' for a missing key, and the error for a key
--              that holds no string, which a reset replaces

local stored, are_same = {}, #ARGV > 0
for i = 1, #KEYS do
  local state = redis.pcall('GET', KEYS[i]) or ''
  if type(state) == 'table' then
    if not state.err:find('WRONGTYPE', 1, true) then return state end
    state = state.err
  end
  stored[i + 1] = state
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
