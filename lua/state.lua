-- state.lua: reads what one key keeps, in the bytes that algorithm/encode.go
-- describes.
--
-- Provides split_claim, parse, latest_reset_at, and the claims' constants. Uses
-- max, algorithm_of and what prelude.lua provides.

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

-- The instant from which nothing of a state counts; now if nothing does.
local function latest_reset_at(records, now)
  local at = now
  for i = 1, #records do at = max(at, records[i].algorithm.reset_at(records[i], now)) end
  return at
end
