-- state.lua: what one key keeps, in the bytes that algorithm/encode.go describes,
-- and which of its records is whose.
--
-- A limit is {algorithm, kind, window, quota, capacity}.
--
-- Provides split_claim, parse, encode, latest_reset_at, arrange. Uses
-- algorithm_of and what prelude.lua provides.

-- The most records of one state.
local MAX_RECORDS = 32

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

-- The records of a state, or nil if one is of an unknown kind.
local function parse(state)
  local records = {}
  if not state then return records end
  if #state == SHORT_BYTES then
    local shape, at, count = unpack(SHORT_FORM, state)
    local window = shape % SHORT_WINDOW
    local kind = (shape - window) / SHORT_WINDOW
    local algorithm = algorithm_of(kind)
    if not algorithm or not algorithm.has_short_form then return nil end
    records[1] = {algorithm = algorithm, kind = kind, window = window, at = at, count = count}
    return records
  end
  local place = 1
  while place <= #state do
    local algorithm = algorithm_of(string.byte(state, place))
    if not algorithm then return nil end
    records[#records + 1], place = algorithm:read(state, place)
  end
  return records
end

local function encode(records)
  local r = records[1]
  if #records == 1 and r.algorithm.has_short_form and r.window < SHORT_WINDOW and r.count < SHORT_COUNT then
    return pack(SHORT_FORM, r.kind * SHORT_WINDOW + r.window, r.at, r.count)
  end
  local parts = {}
  for i = 1, #records do parts[i] = records[i].algorithm.write(records[i]) end
  return table.concat(parts)
end

local function latest_reset_at(records, now)
  local at = now
  for i = 1, #records do at = max(at, records[i].algorithm.reset_at(records[i], now)) end
  return at
end

-- Puts the limits' records first, in their order, adding those that are
-- missing; with them the places of those that were there. A record is a
-- limit's own by kind and window. A limit without one takes over the first
-- live record of its algorithm that no limit owns: what a limit whose window
-- was changed left behind. Other records stay behind while they live.
local function arrange(records, limits, now)
  local own, owned = {}, {}
  for i = 1, #limits do
    for j = 1, #records do
      if records[j].kind == limits[i].kind and records[j].window == limits[i].window then
        own[i], owned[j] = j, true
      end
    end
  end
  for i = 1, #limits do
    local family = limits[i].algorithm.family
    for j = 1, #records do
      local r = records[j]
      if not own[i] and not owned[j] and r.algorithm.family == family and r.algorithm.reset_at(r, now) > now then
        own[i], owned[j] = j, true
      end
    end
  end
  local arranged = {}
  for i = 1, #limits do
    local l, r = limits[i], records[own[i]]
    if r then
      if l.algorithm.adopt then l.algorithm.adopt(r, l, now) end
      r.algorithm, r.kind, r.window = l.algorithm, l.kind, l.window
    end
    arranged[i] = r or l.algorithm:new(l.kind, l.window)
  end
  for j = 1, #records do
    local r = records[j]
    if not owned[j] and #arranged < MAX_RECORDS and r.algorithm.reset_at(r, now) > now then
      arranged[#arranged + 1] = r
    end
  end
  return arranged, own
end
