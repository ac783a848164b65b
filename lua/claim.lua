-- claim.lua: the claim in front of the state of a count that has moved;
-- backend/handoff/stored.go describes it.
--
-- Provides server_clock, read_claim, claim_here, claim_left. Uses split_claim.

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

local function claim_here(version, expires_at)
  return string.char(CLAIM_HERE) .. pack(CLAIM_FORM, version, expires_at)
end

local function claim_left(version, expires_at, left_for, release_version)
  return string.char(CLAIM_LEFT) .. pack(CLAIM_FORM, version, expires_at) .. pack(LEFT_FORM, left_for, release_version)
end
