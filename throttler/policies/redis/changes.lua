-- changes.lua: reads the changes since a version.
--
-- KEYS     as in write.lua
-- ARGV[1]  known  the number of a version
-- ARGV[2]  page   how many changes to read; the rest of the last one's version is read, too
-- ARGV[3]  seen   the last version that the caller saw here, or ''
-- Returns  the version; the number of the last version that is read, or -1 if the log does
--          not go back to known, or has not had seen, because another server, or a backup,
--          has come in its place; for each change its member of the log, the value or '',
--          and a mark: '1' for an override of a policy that has overrides, or a policy's
--          parent, a newline and its key, otherwise ''.
--
-- A field that has changed twice is listed once, under its last version.

local known, version = tonumber(ARGV[1]), redis.call('GET', KEYS[1]) or '0'
local number = tonumber(string.match(version, '^%d+') or '0')
if known > number or known < tonumber(redis.call('GET', KEYS[2]) or '0') then
  return {version, -1}
end
local had = ARGV[3] == '' or ARGV[3] == version
if not had then
  local seen = string.match(ARGV[3], '^%d+') or '0'
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], seen, seen)) do
    had = had or member == 'v' .. ARGV[3]
  end
end
if not had then
  return {version, -1}
end
local members = redis.call('ZRANGEBYSCORE', KEYS[6], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
local to = number
if #members == 2 * tonumber(ARGV[2]) then
  to = tonumber(members[#members])
end
local reply = {version, to}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '(' .. ARGV[1], string.format('%d', to))) do
  local kind, field = string.sub(member, 1, 1), string.sub(member, 2)
  if kind ~= 'v' then
    local hash, mark = KEYS[3], ''
    if kind == 'p' then
      mark = redis.call('HGET', KEYS[7], field) or ''
    else
      hash = KEYS[4]
      if redis.call('HEXISTS', KEYS[5], string.match(field, '^[^\n]*')) == 1 then
        mark = '1'
      end
    end
    reply[#reply + 1] = member
    reply[#reply + 1] = redis.call('HGET', hash, field) or ''
    reply[#reply + 1] = mark
  end
end
return reply
