-- state.lua: what one key keeps, in the bytes that algorithm/encode.go
-- describes, and which of its records is whose.

-- This server's clock, in ms. Claims go by it, and nothing else does.
local function server_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
end

-- The claim in front of a state, of a count that moves between backends, and
-- the state; algorithm/claim.go describes it. A claim that is void is none;
-- that of a count that has left goes with its key.
local function split(stored)
  if not stored then return nil, nil end
  local mark = string.byte(stored, 1)
  if mark ~= 8 and mark ~= 9 then return nil, stored end
  local claim = {left = 0}
  claim.version, claim.void_at = unpack('>I6I6', stored, 2)
  local state = string.sub(stored, 14)
  if mark == 9 then
    claim.left, claim.parted = unpack('>I6I6', stored, 14)
    state = string.sub(stored, 26)
  end
  if mark == 8 and claim.void_at <= server_clock() then claim = nil end
  return claim, state
end

local function parse(state)
  local records = {}
  if not state then return records end
  if #state == 12 then
    local shape, at, count = unpack('>I4I6I2', state)
    local window = shape % 268435456
    records[1] = {kind = (shape - window) / 268435456, window = window, at = at, count = count}
    return records
  end
  local place = 1
  while place <= #state do
    local r = {}
    r.kind, r.window, place = unpack('>I1I6', state, place)
    if r.kind <= ALIGNED_WINDOW then
      r.at, r.count, place = unpack('>I6I7', state, place)
    elseif r.kind == SLIDING_WINDOW then
      r.at, r.count, r.previous, place = unpack('>I6I7I7', state, place)
    elseif r.kind == SLIDING_LOG then
      local entries
      entries, r.count, place = unpack('>I4I7', state, place)
      r.log = string.sub(state, place, place + 10 * entries - 1)
      place = place + 10 * entries
    else
      r.at, r.fraction, place = unpack('>I6I7', state, place)
    end
    records[#records + 1] = r
  end
  return records
end

local function encode(records)
  local r = records[1]
  if #records == 1 and r.kind <= ALIGNED_WINDOW and r.window < 268435456 and r.count < 65536 then
    return pack('>I4I6I2', r.kind * 268435456 + r.window, r.at, r.count)
  end
  local parts = {}
  for i = 1, #records do
    r = records[i]
    local part
    if r.kind <= ALIGNED_WINDOW then
      part = pack('>I1I6I6I7', r.kind, r.window, r.at, r.count)
    elseif r.kind == SLIDING_WINDOW then
      part = pack('>I1I6I6I7I7', r.kind, r.window, r.at, r.count, r.previous)
    elseif r.kind == SLIDING_LOG then
      part = pack('>I1I6I4I7', r.kind, r.window, #r.log / 10, r.count) .. r.log
    else
      part = pack('>I1I6I6I7', r.kind, r.window, r.at, r.fraction)
    end
    parts[i] = part
  end
  return table.concat(parts)
end

local function latest_reset_at(records, now)
  local at = now
  for i = 1, #records do at = max(at, reset_at(records[i], now)) end
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
    local l = limits[i]
    for j = 1, #records do
      local r = records[j]
      local same = r.kind == l.kind or r.kind <= ALIGNED_WINDOW and l.kind <= ALIGNED_WINDOW
      if not own[i] and not owned[j] and same and reset_at(r, now) > now then
        own[i], owned[j] = j, true
      end
    end
  end
  local arranged = {}
  for i = 1, #limits do
    local l = limits[i]
    arranged[i] = records[own[i]] or {kind = l.kind, window = l.window, at = 0, count = 0, previous = 0, fraction = 0, log = ''}
    adopt(arranged[i], l, now)
  end
  for j = 1, #records do
    if not owned[j] and #arranged < 32 and reset_at(records[j], now) > now then
      arranged[#arranged + 1] = records[j]
    end
  end
  return arranged, own
end
