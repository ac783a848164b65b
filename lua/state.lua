-- state.lua: reads what one key keeps, in the bytes that algorithm/encode.go
-- describes.
--
-- Provides split_claim, parse, latest_reset_at, MAX_RECORDS, ENDS_FLAG, GAPS_FLAG,
-- RINGS, RINGS_FORM. Uses algorithm_of of kinds.lua.

-- The most records of one state; and the flags in the kind of a record that ends with
-- the time at which it is given up, and of a queue that has gaps.
local MAX_RECORDS, ENDS_FLAG, GAPS_FLAG = 32, 16, 32


-- The first byte of a state whose logs are rings behind its records; it, and the bytes
-- of the records.
local RINGS, RINGS_FORM = 10, '>I1I2'

-- The ms of a second, a minute, an hour, a day, as digits.lua counts windows.
local digits_units = {1000, 60000, 3600000, 86400000}

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
local function parse_rows(state, key, offset)
  local records = {}
  local place, rows_end, rings = 1, #state, nil
  if string.byte(state, 1) == RINGS then
    local _, bytes, first = unpack(RINGS_FORM, state)
    place, rows_end = first, first + bytes - 1
    rings = {key = key, after = offset + rows_end}
    records.front_bytes = rows_end
  end
  while place <= rows_end do
    local kind = string.byte(state, place)
    local ends, gaps = bit.band(kind, ENDS_FLAG) ~= 0, bit.band(kind, GAPS_FLAG) ~= 0
    if ends then kind = kind - ENDS_FLAG end
    if gaps then kind = kind - GAPS_FLAG end
    local algorithm = algorithm_of(kind)
    if not algorithm then return nil end
    local r
    r, place = algorithm:read(state, place, rings)
    r.kind = kind
    if ends then r.ends_at, place = unpack('>I6', state, place) end
    if gaps then
      r.gaps_at, r.gaps_fraction, r.gaps, place = unpack('>I6I7I7', state, place)
      if r.gaps == 0 or r.gaps_fraction >= (r.quota or 0) then return nil end
    end
    if r.window == 0 or r.quota and r.fraction >= r.quota or #records == MAX_RECORDS then return nil end
    records[#records + 1] = r
  end
  if place ~= rows_end + 1 then return nil end
  if rings and rings.after ~= (key and redis.call('STRLEN', key) or #state) then return nil end
  return records
end

-- The record of a window in digits, nil if there is no such code.
local function parse_digits(state)
  local front, count = tonumber(string.sub(state, 1, DIGITS_FRONT)), tonumber(string.sub(state, DIGITS_FRONT + 1))
  local since = front % DIGITS_SPAN
  local code, kind = (front - since) / DIGITS_SPAN, FIXED_WINDOW
  if code > ALIGNED_CODE + 99 then code, kind = code - ALIGNED_CODE, ALIGNED_WINDOW end
  local n = code % 100
  local unit = digits_units[(code - n) / 100]
  if not unit or n == 0 then return nil end
  return {{algorithm = algorithm_of(kind), kind = kind, window = n * unit, ends_at = nil, at = since + DIGITS_EPOCH, count = count}}
end

-- The records of a state, or nil if it is not one. Its rings are in it, or, if there
-- is a key, in that, which has the state at that offset.
local function parse(state, key, offset)
  if not state then return {} end
  if #state == DIGITS and string.find(state, '^%d+$') then return parse_digits(state) end
  if #state ~= SHORT_BYTES then
    local ok, records = pcall(parse_rows, state, key, offset or 0) -- unpack fails where bytes are missing
    return ok and records or nil
  end
  local shape, at, count = unpack(SHORT_FORM, state)
  local window = shape % SHORT_WINDOW
  local kind = (shape - window) / SHORT_WINDOW
  local algorithm = algorithm_of(kind)
  if not algorithm or not algorithm.has_short_form or window == 0 then return nil end
  return {{algorithm = algorithm, kind = kind, window = window, ends_at = nil, at = at, count = count}}
end

-- The instant from which nothing of a state counts; now if nothing does.
local function latest_reset_at(records, now)
  local at = now
  for i = 1, #records do at = max(at, records[i].algorithm.reset_at(records[i], now)) end
  return at
end
