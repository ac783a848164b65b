-- stored.lua: what a key keeps, read and stored without its rings where it has them.
--
-- Provides read_front, life_of, store. Uses window_code, digits_of of digits.lua; split_claim,
-- RINGS, RINGS_FORM of state.lua; encode, encode_rows, sizes_of_logs of records.lua.

-- What is stored under a key, but for its rings, and whether it has rings; false if
-- nothing is, a table if it is no string. front is what GETRANGE has of it, up to
-- FRONT_END.
local function read_front(key, front)
  local stored = front
  if type(stored) == 'table' then return stored end
  if #stored < FRONT_BYTES then return stored ~= '' and stored end
  local claim, state = split_claim(stored)
  if string.byte(state, 1) ~= RINGS then return redis.pcall('GET', key) end
  local _, bytes, first = unpack(RINGS_FORM, state)
  bytes = #claim + first - 1 + bytes
  if bytes > #stored then stored = redis.pcall('GETRANGE', key, '0', bytes - 1) end
  return stored, true
end

-- The rows of records, if they are the records that were read, and their rings are
-- still in the key, where these rows belong; else nil. A ring that is three quarters
-- empty makes the caller rewrite the state.
local function rows_in_place(records, read)
  if #records ~= #read then return nil end
  for i = 1, #records do
    if records[i] ~= read[i] or records[i].algorithm.has_log and records[i].log then return nil end
  end
  local entries, slots = sizes_of_logs(records)
  if entries * 4 < slots then return nil end
  local rows = encode_rows(records, true)
  return #rows == read.front_bytes and rows or nil
end

-- The bytes of records behind a claim. One window alone, without a claim, is digits.
local function encode_behind(claim, records)
  local r = records[1]
  if claim == '' and #records == 1 and r.algorithm.has_short_form and not r.ends_at then
    local code = window_code(r.window)
    local digits = digits_of(code and code + r.algorithm.code, r.at, r.count)
    if digits then return digits end
  end
  return claim .. encode(records)
end

-- For how many ms records count: until their reset times, by the caller's clock. If a
-- process wrote them whose clock is far ahead, that is years: but nothing counts longer
-- than twice its window or, in a bucket, than that had to drain when it was last charged.
local function life_of(records, now)
  local life = 0
  for i = 1, #records do
    local r = records[i]
    local most = 2 * r.window
    if r.quota then most = max(most, r.algorithm.reset_at(r, 0) - r.charged_at) end
    life = max(life, min(r.algorithm.reset_at(r, now) - now, most))
  end
  return life
end

-- Stores c's records behind a claim, '' if there is none; life is how many ms the key is
-- to live, nil if it keeps its expiry. c.stored is what was read, if only the front of
-- it was, behind the claim c.front_claim.
local function store(c, claim, records, life)
  local rows = claim == c.front_claim and rows_in_place(records, c.stored)
  if rows then
    redis.call('SETRANGE', c.key, #claim, rows)
    if life then redis.call('PEXPIRE', c.key, life) end
  elseif life then
    redis.call('SET', c.key, encode_behind(claim, records), 'PX', life)
  else
    redis.call('SET', c.key, encode_behind(claim, records), 'KEEPTTL')
  end
end
