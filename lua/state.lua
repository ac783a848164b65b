-- state.lua: what one key keeps, in the bytes that algorithm/encode.go describes,
-- and which of its records is whose.
--
-- A limit is {algorithm, kind, window, quota, capacity}.
--
-- Provides split_claim, parse, encode, latest_reset_at, nearest_limit, arrange. Uses
-- algorithm_of and what prelude.lua provides.

-- The most records of one state; and what is added to the kind of one that ends in
-- an instant, the one at which it is given up.
local MAX_RECORDS, ENDS_FLAG = 32, 16

-- The first byte of a claim in front of a state, of a count that is here or has
-- left, and the claim's size.
local CLAIM_HERE, CLAIM_LEFT, CLAIM_HERE_BYTES, CLAIM_LEFT_BYTES = 8, 9, 13, 25

-- The bytes of a claim in front of a state, '' if there is none, and the state;
-- nil if nothing is stored.
local function split_claim(stored)
  if not stored then return '', nil end
  local first, bytes = string.byte(stored, 1), 0
  if first == CLAIM_HERE then
    bytes = CLAIM_HERE_BYTES
  elseif first == CLAIM_LEFT then
    bytes = CLAIM_LEFT_BYTES
  end
  if bytes == 0 then return '', stored end
  return string.sub(stored, 1, bytes), string.sub(stored, bytes + 1)
end

-- The records of a state that is not in the short form. It fails with an error, or
-- nil, if it is none.
local function parse_rows(state)
  local records = {}
  local place = 1
  while place <= #state do
    local kind = string.byte(state, place)
    local ends = kind >= ENDS_FLAG and kind < 2 * ENDS_FLAG
    if ends then kind = kind - ENDS_FLAG end
    local algorithm, r = algorithm_of(kind), nil
    if not algorithm then return nil end
    r, place = algorithm:read(state, place)
    if ends then
      r.kind = kind
      r.ends_at, place = unpack('>I6', state, place)
    end
    if r.window == 0 or r.quota and r.fraction >= r.quota or #records == MAX_RECORDS then return nil end
    records[#records + 1] = r
  end
  return place == #state + 1 and records or nil
end

-- The records of a state, or nil if it is not one.
local function parse(state)
  if not state then return {} end
  if #state ~= SHORT_BYTES then
    local ok, records = pcall(parse_rows, state) -- unpack fails where bytes are missing
    return ok and records or nil
  end
  local shape, at, count = unpack(SHORT_FORM, state)
  local window = shape % SHORT_WINDOW
  local kind = (shape - window) / SHORT_WINDOW
  local algorithm = algorithm_of(kind)
  if not algorithm or not algorithm.has_short_form or window == 0 then return nil end
  return {{algorithm = algorithm, kind = kind, window = window, ends_at = nil, at = at, count = count}}
end

local function encode(records)
  local r = records[1]
  if #records == 1 and not r.ends_at and r.algorithm.has_short_form and r.window < SHORT_WINDOW and r.count < SHORT_COUNT then
    return pack(SHORT_FORM, r.kind * SHORT_WINDOW + r.window, r.at, r.count)
  end
  local parts = {}
  for i = 1, #records do
    r = records[i]
    parts[i] = r.algorithm.write(r)
    if r.ends_at then
      parts[i] = string.char(r.kind + ENDS_FLAG) .. string.sub(parts[i], 2) .. pack('>I6', r.ends_at)
    end
  end
  return table.concat(parts)
end

local function latest_reset_at(records, now)
  local at = now
  for i = 1, #records do at = max(at, records[i].algorithm.reset_at(records[i], now)) end
  return at
end

-- How far apart two windows are: their ratio.
local function distance(a, b) return max(a, b) / min(a, b) end

-- What counts under l: its own record, or, if there is none, what it adopts from the
-- record of its family whose window is nearest; nil if there is none either. A copy
-- if it is not l's own, or has another quota.
local function under(l, records)
  local nearest
  for i = 1, #records do
    local r = records[i]
    if r.kind == l.kind and r.window == l.window then
      if not r.quota or r.quota == l.quota then return r end
      nearest = r
      break
    end
    if r.algorithm.family == l.algorithm.family and (not nearest or distance(r.window, l.window) < distance(nearest.window, l.window)) then
      nearest = r
    end
  end
  if not nearest then return nil end
  local r = {}
  for name, value in pairs(nearest) do r[name] = value end
  l.algorithm.adopt(r, l)
  r.algorithm, r.kind, r.window, r.ends_at = l.algorithm, l.kind, l.window, nil
  return r
end

-- Whether a record is a limit's own; the place of the limit of its family whose
-- window is nearest, nil if there is none.
local function nearest_limit(r, limits)
  local nearest
  for i = 1, #limits do
    local l = limits[i]
    if r.kind == l.kind and r.window == l.window then return true, i end
    if r.algorithm.family == l.algorithm.family and (not nearest or distance(r.window, l.window) < distance(r.window, limits[nearest].window)) then
      nearest = i
    end
  end
  return false, nearest
end

-- The limits' records, in their order, and new ones where there are none; and behind
-- them those of no limit while they live: another process may still run the policy
-- that they belong to. One that this policy keeps alive ends where its own left it.
local function arrange(records, limits, now)
  local same = #records == #limits
  for i = 1, same and #limits or 0 do
    local r, l = records[i], limits[i]
    same = same and r.kind == l.kind and r.window == l.window and (not r.quota or r.quota == l.quota)
  end
  if same then return records end
  local arranged = {}
  for i = 1, #limits do
    arranged[i] = under(limits[i], records) or limits[i].algorithm:new(limits[i].kind, limits[i].window)
  end
  for i = 1, #records do
    local r = records[i]
    if #arranged < MAX_RECORDS and not nearest_limit(r, limits) and not (r.ends_at and r.ends_at <= now) and r.algorithm.reset_at(r, now) > now then
      arranged[#arranged + 1] = r
    end
  end
  return arranged
end
