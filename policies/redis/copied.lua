-- copied.lua: replaces the policies and overrides here with a copy of another server's.
--
-- KEYS[1] to KEYS[8]   as in write.lua
-- KEYS[9] to KEYS[16]  the same keys of the copy
-- ARGV[1]  base   the version expected here, or ''
-- ARGV[2]  is     the version of the copy
-- ARGV[3]  own    the copy's version at KEYS[9], '' if it has no entries
-- Returns  1, or 0 if the version here is not base, or -1 if KEYS[9] is not own, because
--          the copy has expired; then nothing has changed

local result = 1
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  result = 0
elseif (redis.call('GET', KEYS[9]) or '') ~= ARGV[3] then
  result = -1
end
for i = 1, 8 do
  local counts = i == 1 or i == 2 or i == 6 -- the copy's own versions
  if result == 1 then
    redis.call('UNLINK', KEYS[i])
  end
  if result ~= 1 or counts then
    redis.call('UNLINK', KEYS[8 + i])
  elseif redis.call('EXISTS', KEYS[8 + i]) == 1 then
    redis.call('RENAME', KEYS[8 + i], KEYS[i])
    redis.call('PERSIST', KEYS[i])
  end
end
if result ~= 1 then
  return result
end
local number = string.match(ARGV[2], '^%d+')
redis.call('SET', KEYS[2], number)
redis.call('SET', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[6], number, 'v' .. ARGV[2])
return 1
