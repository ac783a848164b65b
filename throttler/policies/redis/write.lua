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
-- KEYS[8]  heights    a hash: name of a parent; how many of its children have no policy
--                     below them, how many one level, and so on
-- ARGV[1]  length     of the log, at most
-- ARGV[2]  drawn      by the caller, so that two versions of one number differ
-- ARGV[3]  depth      of the tree, at most
-- ARGV[i]  kind       from 4 on, four each: 'p' or 'o', or 'e' for an override that has ended
--          field      of the hash,
--          value      or '' to remove it; for 'e', the value that it must have to be removed,
--          parent     of a policy, as in parents, or ''
-- Returns  the number of the version, or 0 if nothing had to change, or an error that begins
--          with TREE if parents are not valid; then nothing has changed

local depth = tonumber(ARGV[3])

local number = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^%d+') or '0') + 1

local function name_of(parent)
  return string.match(parent, '^[^\n]*')
end

-- The parents and texts of changed policies; the parent is false if the policy is removed.
local after, texts = {}, {}
for i = 4, #ARGV, 4 do
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

-- The tree is changed as in throttler/policies/tree.go: changed policies are taken out, and put back
-- where they fit. Nothing is written before all of them fit.
local linked = {} -- current parents of changed policies
local was = {} -- their parents before the change
local below = {} -- heights that were read, as lists
local counted = {} -- the lists of below that have changed
local function parent_of(name)
  return linked[name] or name_of(redis.call('HGET', KEYS[7], name) or '')
end
local function heights(name)
  local all = below[name]
  if not all then
    all = {}
    for n in string.gmatch(redis.call('HGET', KEYS[8], name) or '', '%d+') do
      all[#all + 1] = tonumber(n)
    end
    for i = #all + 1, depth do
      all[i] = 0
    end
    below[name] = all
  end
  return all
end
local function height(name)
  if not below[name] and redis.call('HEXISTS', KEYS[8], name) == 0 then
    return 1
  end
  local all = heights(name)
  for i = depth, 1, -1 do
    if all[i] > 0 then
      return i + 1
    end
  end
  return 1
end
local function count(name, from, to)
  while name ~= '' and from ~= to do
    local all, before = heights(name), height(name)
    counted[name] = all
    if from > 0 then
      all[from] = all[from] - 1
    end
    if to > 0 then
      all[to] = all[to] + 1
    end
    name, from, to = parent_of(name), before, height(name)
  end
end

for name in pairs(after) do
  local parent = parent_of(name)
  was[name], linked[name] = parent, ''
  if parent ~= '' then
    count(parent, height(name), 0)
  end
end
for name, parent in pairs(after) do
  if parent and height(name) > 1 then -- its children that do not change count in its old unit
    local unit, theirs = unit_of(texts[name]), unit_of(redis.call('HGET', KEYS[3], name))
    if unit ~= theirs then
      return redis.error_reply('TREE policy "' .. name .. '" counts ' .. unit .. ', and is the parent of others that count ' .. theirs .. '; change them in the same change')
    end
    if ends(texts[name]) then
      return redis.error_reply('TREE policy "' .. name .. '" has an end, and is the parent of others; a parent cannot have an end')
    end
  end
end
for name, parent in pairs(after) do
  local is = name_of(parent or '')
  if is ~= '' then
    if not exists(is) then
      return redis.error_reply('TREE policy "' .. name .. '" has the parent "' .. is .. '", which the store lacks')
    end
    local above = texts[is] or redis.call('HGET', KEYS[3], is)
    if ends(above) then
      return redis.error_reply('TREE policy "' .. name .. '" has the parent "' .. is .. '", which has an end; a parent cannot have an end')
    end
    local unit, its = unit_of(texts[name]), unit_of(above)
    if unit ~= its then
      return redis.error_reply('TREE policy "' .. name .. '" counts ' .. unit .. ', and its parent "' .. is .. '" counts ' .. its .. '; both are charged the same cost, so they must count the same')
    end
    local line, at = {name}, is
    while at ~= '' do
      line[#line + 1] = at
      if at == name then
        return redis.error_reply('TREE the parents of policy "' .. name .. '" are a cycle: ' .. table.concat(line, ', '))
      end
      at = parent_of(at)
    end
    local n = height(name)
    if #line - 1 + n > depth then
      return redis.error_reply('TREE ' .. #line - 1 + n .. ' policies in a line of parents, ' .. n - 1 .. ' below ' .. table.concat(line, ', ') .. '; they may be ' .. depth)
    end
    linked[name] = is
    count(is, 0, n)
  end
end
for name, parent in pairs(after) do
  if parent == false and height(name) > 1 then
    return redis.error_reply('TREE policy "' .. name .. '" is removed, and is the parent of others; give them another parent, or remove theirs, in the same change')
  end
end

for name, parent in pairs(after) do
  if parent and parent ~= '' then
    redis.call('HSET', KEYS[7], name, parent)
  elseif was[name] ~= '' then
    redis.call('HDEL', KEYS[7], name)
  end
end
for name, all in pairs(counted) do
  if height(name) > 1 then
    redis.call('HSET', KEYS[8], name, table.concat(all, ','))
  else
    redis.call('HDEL', KEYS[8], name)
  end
end

-- Overrides that have ended are removed unless they have changed since.
local changes = {}
for i = 4, #ARGV, 4 do
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
