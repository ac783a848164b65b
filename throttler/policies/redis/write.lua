-- write.lua: makes changes of policies and overrides, as one version.
--
-- KEYS[1]  version    of the last change: its number, a space, and ARGV[2] of its caller
-- KEYS[2]  trimmed    the last version that the log no longer has in full
-- KEYS[3]  policies   a hash: name, limits
-- KEYS[4]  overrides  a hash: policy, newline, key; override
-- KEYS[5]  marks      a hash: policy, how many overrides it has
-- KEYS[6]  log        a sorted set: 'p' and a field of policies, or 'o' and a field
--                     of overrides; the last version that changed it. Also 'v' and the
--                     text of a version; its number
-- KEYS[7]  parents    a hash: name of a policy that has a parent; the parent, newline, its key
-- KEYS[8]  children   a hash: name of a parent; how many policies are its children
-- ARGV[1]  length     of the log, at most
-- ARGV[2]  drawn      by the caller, so that two versions of one number differ
-- ARGV[i]  kind       from 3 on, four each: 'p' or 'o', or 'e' for an override that has ended
--          field      of the hash,
--          value      or '' to remove it; for 'e', the value that it must have to be removed,
--          parent     of a policy, as in parents, or ''
-- Returns  the number of the version, or 0 if nothing had to change, or an error that begins
--          with TREE if parents are not valid; then nothing has changed

local number = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^%d+') or '0') + 1

local function name_of(parent)
  return string.match(parent, '^[^\n]*')
end

-- The parents and texts of changed policies; the parent is false if the policy is removed.
local after, texts = {}, {}
for i = 3, #ARGV, 4 do
  if ARGV[i] == 'p' then
    after[ARGV[i + 1]] = ARGV[i + 2] ~= '' and ARGV[i + 3]
    texts[ARGV[i + 1]] = ARGV[i + 2]
  end
end
local function unit_of(text) -- text may not be a policy: a change may mend it
  local ok, policy = pcall(cjson.decode, text)
  return ok and type(policy) == 'table' and policy.unit or 'requests'
end
local function ends(text)
  local ok, policy = pcall(cjson.decode, text)
  return ok and type(policy) == 'table' and policy['until'] ~= nil
end
local function exists(name)
  if after[name] ~= nil then
    return after[name] ~= false
  end
  return redis.call('HEXISTS', KEYS[3], name) == 1
end

-- The tree is checked as in throttler/policies/tree.go. Nothing is written before all of it is valid.
local before = {} -- the parents of changed policies
local children = {} -- how many policies are the children of parents
local function stored_parent(name)
  return name_of(redis.call('HGET', KEYS[7], name) or '')
end
local function parent_of(name)
  if after[name] ~= nil then
    return name_of(after[name] or '')
  end
  return stored_parent(name)
end
local function children_of(name)
  return children[name] or tonumber(redis.call('HGET', KEYS[8], name) or '0') or 0
end
local function count(name, n)
  if name ~= '' then
    children[name] = children_of(name) + n
  end
end

for name in pairs(after) do
  before[name] = stored_parent(name)
  count(before[name], -1)
end
for name, parent in pairs(after) do
  if children_of(name) > 0 then -- these do not change
    if parent == false then
      return redis.error_reply('TREE policy "' .. name .. '" is removed, and is the parent of others; give them another parent, or remove theirs, in the same change')
    end
    local unit, theirs = unit_of(texts[name]), unit_of(redis.call('HGET', KEYS[3], name))
    if unit ~= theirs then
      return redis.error_reply('TREE policy "' .. name .. '" counts ' .. unit .. ', and is the parent of others that count ' .. theirs .. '; change them in the same change')
    end
    if ends(texts[name]) then
      return redis.error_reply('TREE policy "' .. name .. '" has an end, and is the parent of others; a parent cannot have an end')
    end
  end
end
for name in pairs(after) do
  local parent = parent_of(name)
  if parent ~= '' then
    if not exists(parent) then
      return redis.error_reply('TREE policy "' .. name .. '" has the parent "' .. parent .. '", which the store lacks')
    end
    local above = texts[parent] or redis.call('HGET', KEYS[3], parent)
    if ends(above) then
      return redis.error_reply('TREE policy "' .. name .. '" has the parent "' .. parent .. '", which has an end; a parent cannot have an end')
    end
    local unit, its = unit_of(texts[name]), unit_of(above)
    if unit ~= its then
      return redis.error_reply('TREE policy "' .. name .. '" counts ' .. unit .. ', and its parent "' .. parent .. '" counts ' .. its .. '; both are charged the same cost, so they must count the same')
    end
    count(parent, 1)
  end
end
local seen = {} -- policies that a walk came to, and where the walk began
for name in pairs(after) do
  local line, at = {}, children_of(name) > 0 and name or '' -- others are in no cycle
  while at ~= '' and not seen[at] do
    seen[at] = name
    line[#line + 1] = at
    at = parent_of(at)
  end
  if #line > 0 and seen[at] == name then
    return redis.error_reply('TREE the parents of policy "' .. at .. '" are a cycle: ' .. table.concat(line, ', ') .. ', ' .. at)
  end
end

for name, parent in pairs(after) do
  if parent and parent ~= '' then
    redis.call('HSET', KEYS[7], name, parent)
  elseif before[name] ~= '' then
    redis.call('HDEL', KEYS[7], name)
  end
end
for name, n in pairs(children) do
  if n > 0 then
    redis.call('HSET', KEYS[8], name, n)
  else
    redis.call('HDEL', KEYS[8], name)
  end
end

-- Overrides that have ended are removed unless they have changed since.
local changes = {}
for i = 3, #ARGV, 4 do
  local kind, field, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind ~= 'e' then
    changes[#changes + 1] = {kind, field, value}
  elseif redis.call('HGET', KEYS[4], field) == value then
    changes[#changes + 1] = {'o', field, ''}
  end
end
if #changes == 0 then
  return 0
end

redis.call('SET', KEYS[1], string.format('%d %s', number, ARGV[2]))
for _, entry in ipairs(changes) do
  local kind, field, value = unpack(entry)
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
redis.call('ZADD', KEYS[6], number, string.format('v%d %s', number, ARGV[2]))
local over = redis.call('ZCARD', KEYS[6]) - tonumber(ARGV[1])
if over > 0 then
  local last = redis.call('ZRANGE', KEYS[6], over - 1, over - 1, 'WITHSCORES')[2]
  redis.call('SET', KEYS[2], last)
  redis.call('ZREMRANGEBYSCORE', KEYS[6], '-inf', last)
end
return number
