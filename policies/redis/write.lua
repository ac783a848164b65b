-- write.lua: makes changes of policies and overrides, as one version.
--
-- KEYS[1]  version    of the last change: its number, a space, and what its caller drew
-- KEYS[2]  trimmed    the last version that the log does not have whole
-- KEYS[3]  policies   a hash: name, limits
-- KEYS[4]  overrides  a hash: policy, newline, key; override
-- KEYS[5]  marks      a hash: policy, how many overrides it has
-- KEYS[6]  log        a sorted set: 'p' and a field of policies, or 'o' and one of
--                     overrides; the last version that changed it
-- ARGV[1]  length     of the log, at most
-- ARGV[2]  drawn      by the caller, so that two versions of one number differ
-- ARGV[i]  kind       from 3 on, three each: 'p' or 'o',
--          field      of the hash,
--          value      or '' to remove it
-- Returns  the number of the version

local number = tonumber(string.match(redis.call('GET', KEYS[1]) or '0', '^%d+')) + 1
redis.call('SET', KEYS[1], string.format('%d %s', number, ARGV[2]))
for i = 3, #ARGV, 3 do
  local kind, field, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local hash, change = kind == 'p' and KEYS[3] or KEYS[4]
  if value == '' then
    change = -redis.call('HDEL', hash, field)
  else
    change = redis.call('HSET', hash, field, value)
  end
  if kind == 'o' and change ~= 0 then
    local policy = string.match(field, '^[^\n]*')
    if redis.call('HINCRBY', KEYS[5], policy, change) <= 0 then
      redis.call('HDEL', KEYS[5], policy)
    end
  end
  redis.call('ZADD', KEYS[6], number, kind .. field)
end
local over = redis.call('ZCARD', KEYS[6]) - tonumber(ARGV[1])
if over > 0 then
  local last = redis.call('ZRANGE', KEYS[6], over - 1, over - 1, 'WITHSCORES')[2]
  redis.call('SET', KEYS[2], last)
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', last)
end
return number
