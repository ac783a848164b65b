-- claim.lua: the claim in front of the state of a count that has moved;
-- backend/handoff/stored.go describes it.
--
-- Provides server_clock, read_present, write_claim, unknown_kind. Uses split_claim,
-- parse, latest_reset_at of state.lua.

local CLAIM_FORM, LEFT_FORM = '>I6I6', '>I6I6' -- version, expires at; left for, release version

-- This server's clock, in ms. Claims expire by it, and nothing else does.
local clock
local function server_clock()
  if not clock then
    local time = redis.call('TIME')
    clock = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
  end
  return clock
end

-- The claim {version, expires_at, left_for, release_version} of what is stored,
-- nil if there is none, and the state. One of a count that has left expires with
-- its key.
local function read_claim(stored)
  local bytes, state = split_claim(stored)
  if bytes == '' then return nil, state end
  local c = {left_for = 0, release_version = 0}
  c.version, c.expires_at = unpack(CLAIM_FORM, bytes, 2)
  if #bytes == CLAIM_LEFT_BYTES then
    c.left_for, c.release_version = unpack(LEFT_FORM, bytes, CLAIM_HERE_BYTES + 1)
  elseif c.expires_at <= server_clock() then
    return nil, state
  end
  return c, state
end

-- The same, but nothing for an expired state without a claim: where counts move, the
-- count may have started again elsewhere. key is given if stored is only the front of
-- its value.
local function read_present(stored, now, key)
  local claim, state = read_claim(stored)
  if claim or not state then return claim, state end
  local records = parse(state, key, key and #stored - #state)
  if records and latest_reset_at(records, now) <= now then return nil, nil end
  return nil, state
end

-- The bytes of a claim.
local function write_claim(c)
  if c.left_for == 0 then return string.char(CLAIM_HERE) .. pack(CLAIM_FORM, c.version, c.expires_at) end
  return string.char(CLAIM_LEFT) .. pack(CLAIM_FORM, c.version, c.expires_at) .. pack(LEFT_FORM, c.left_for, c.release_version)
end

local function unknown_kind()
  return redis.error_reply('ERR a limit or a stored state is of a kind that this script does not know: a newer version, or something else, wrote it')
end
