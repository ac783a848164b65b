-- release.lua: the end of the script that releases counts to another backend, as
-- package handoff has it: Release.
--
-- KEYS[i]  count    of a (policy, key), of one partition
-- ARGV[1]  release  packed, numbers big-endian and unsigned:
--                   6 now, Unix ms
--                   4 margin, ms that a key outlives what it is good for
--                   4 ms to remember that the counts left
--                   6 version of the move
--                   6 backend that receives them
-- Returns  for each count: 0 if there is none, or a dead one without a claim, 1 if it was here, 2 if it had left
--          before, 3 if it was not released, because a version that is not older
--          has placed it; the version that placed it, else that under which it
--          left; the backend where it was placed, or 0; its state, or ''.
--
-- Uses parse of state.lua; server_clock, read_present, write_claim, unknown_kind of
-- claim.lua.

local now, margin, keep, version, to = unpack('>I6I4I4I6I6', ARGV[1])
local outcomes = {}

local function outcome(code, claim_version, backend, state)
  local n = #outcomes
  outcomes[n + 1], outcomes[n + 2], outcomes[n + 3], outcomes[n + 4] = code, claim_version, backend, state
end

for i = 1, #KEYS do
  local claim, state = read_present(redis.call('GET', KEYS[i]), now)
  claim = claim or {version = 0, expires_at = 0, left_for = 0, release_version = 0}
  if not parse(state) then return unknown_kind() end
  if claim.version > version or claim.version == version and claim.left_for ~= to then
    outcome(3, claim.version, claim.left_for, '')
  else
    local left, release_version, code = claim.left_for > 0, claim.release_version, 1
    if state and not left then release_version = version end
    if release_version == 0 then code = 0 elseif left then code = 2 end
    local life = max(redis.call('PTTL', KEYS[i]), keep + margin)
    local released = {version = version, expires_at = max(server_clock() + life, claim.expires_at), left_for = to, release_version = release_version}
    redis.call('SET', KEYS[i], write_claim(released) .. (state or ''), 'PX', life)
    outcome(code, release_version, 0, state or '')
  end
end
return outcomes
