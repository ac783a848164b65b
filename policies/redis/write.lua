-- write.lua: makes changes of policies and overrides, as one version.
--
-- KEYS[1]  version    of the last change: its number, a space, and what its caller drew
-- KEYS[2]  trimmed    the last version that the log does not have whole
-- KEYS[3]  policies   a hash: name, limits
-- KEYS[4]  overrides  a hash: policy, newline, key; override
-- KEYS[5]  marks      a hash: policy, how many overrides it has
-- KEYS[6]  log        a sorted set: 'p' and a field of policies, or 'o' and one of
--                     overrides; the last version that changed it
-- KEYS[7]  parents    a hash: name of a policy that has a parent; that, newline, its key
-- KEYS[8]  children   a hash: name of a policy that is a parent, of how many
-- ARGV[1]  length     of the log, at most
-- ARGV[2]  drawn      by the caller, so that two versions of one number differ
-- ARGV[3]  depth      of the tree, at most
-- ARGV[i]  kind       from 4 on, four each: 'p' or 'o',
--          field      of the hash,
--          value      or '' to remove it,
--          parent     of a policy, as in parents, or ''
-- Returns  the number of the version, or an error that begins with TREE, of parents that
--          are not valid; then nothing has changed

local function name_of(parent)
  return string.match(parent, '^[^\n]*')
end

-- What policies are and have for parents after the change: false if they are removed.
local after = {}
for i = 4, #ARGV, 4 do
  if ARGV[i] == 'p' then
    after[ARGV[i + 1]] = ARGV[i + 2] ~= '' and ARGV[i + 3]
  end
end
local function exists(name)
  if after[name] ~= nil then
    return after[name] ~= false
  end
  return redis.call('HEXISTS', KEYS[3], name) == 1
end
local function parent_of(name)
  if after[name] ~= nil then
    return name_of(after[name] or '')
  end
  return name_of(redis.call('HGET', KEYS[7], name) or '')
end

local more = {} -- children of parents
for name, parent in pairs(after) do
  local was, is = name_of(redis.call('HGET', KEYS[7], name) or ''), name_of(parent or '')
  more[was] = (more[was] or 0) - 1
  more[is] = (more[is] or 0) + 1
  local line = {name}
  while is ~= '' do
    if not exists(is) then
      return redis.error_reply('TREE policy "' .. line[#line] .. '" has the parent "' .. is .. '", which the store lacks')
    end
    line[#line + 1] = is
    if is == name then
      return redis.error_reply('TREE the parents of policy "' .. name .. '" are a cycle: ' .. table.concat(line, ', '))
    end
    if #line > tonumber(ARGV[3]) then
      return redis.error_reply('TREE more than ' .. ARGV[3] .. ' policies in a line of parents: ' .. table.concat(line, ', '))
    end
    is = parent_of(is)
  end
end
for name, parent in pairs(after) do
  local children = parent == false and (more[name] or 0) + tonumber(redis.call('HGET', KEYS[8], name) or '0') or 0
  if children > 0 then
    return redis.error_reply('TREE policy "' .. name .. '" is removed, and is the parent of ' .. children .. ' others; give them another one, or none, in the same change')
  end
end

local number = tonumber(string.match(redis.call('GET', KEYS[1]) or '0', '^%d+')) + 1
redis.call('SET', KEYS[1], string.format('%d %s', number, ARGV[2]))
for name, parent in pairs(after) do
  if parent and parent ~= '' then
    redis.call('HSET', KEYS[7], name, parent)
  else
    redis.call('HDEL', KEYS[7], name)
  end
end
for name, n in pairs(more) do
  if name ~= '' and n ~= 0 and redis.call('HINCRBY', KEYS[8], name, n) <= 0 then
    redis.call('HDEL', KEYS[8], name)
  end
end
for i = 4, #ARGV, 4 do
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
