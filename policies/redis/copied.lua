-- copied.lua: replaces the policies and overrides here with a copy of another server's.
--
-- KEYS[1] to KEYS[8]   as in write.lua
-- KEYS[9] to KEYS[16]  the same keys of the copy
-- ARGV[1]  base   the version expected here, or ''
-- ARGV[2]  is     the version of the copy
-- Returns  1, or 0 if the version here is not base; then nothing has changed

local here = (redis.call('GET', KEYS[1]) or '') == ARGV[1]
for i = 1, 8 do
  local counts = i == 1 or i == 2 or i == 6 -- the copy's own versions
  if here then
    redis.call('UNLINK', KEYS[i])
  end
  if not here or counts then
    redis.call('UNLINK', KEYS[8 + i])
  elseif redis.call('EXISTS', KEYS[8 + i]) == 1 then
    redis.call('RENAME', KEYS[8 + i], KEYS[i])
    redis.call('PERSIST', KEYS[i])
  end
end
if not here then
  return 0
end
redis.call('SET', KEYS[2], string.match(ARGV[2], '^%d+'))
redis.call('SET', KEYS[1], ARGV[2])
return 1
