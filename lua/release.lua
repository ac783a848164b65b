-- release.lua: let counts go to another backend, as algorithm has it: Release.
-- It is a script of its own: it asks nothing of a state.
--
-- KEYS[i]  count     of a (policy, key), of one partition
--
-- ARGV[1]  release   packed, numbers big-endian and unsigned:
--                    4 margin, ms that a key outlives what it is good for
--                    4 ms to remember that the counts are gone
--                    6 version of the view by which they go
--                    6 place that they go to
--
-- Returns  for each count: 0 if nothing is known of it, 1 if it was here, 2 if
--          it had left before, 3 if it stays, because a later view has placed
--          it; if it stays, the version of that view, else that by which it
--          left; if it stays, its place, or 0; else its state.

local unpack, pack, max = struct.unpack, struct.pack, math.max
local margin, keep, version, to = unpack('>I4I4I6I6', ARGV[1])
local time = redis.call('TIME')
local clock = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local replies = {}

local function reply(code, claim_version, place, state)
  local n = #replies
  replies[n + 1], replies[n + 2], replies[n + 3], replies[n + 4] = code, claim_version, place, state
end

for i = 1, #KEYS do
  local stored = redis.call('GET', KEYS[i])
  local ttl = redis.call('PTTL', KEYS[i])
  local state, held, void_at, left, parted = stored or '', 0, 0, 0, 0
  local mark = string.byte(state, 1)
  if mark == 8 or mark == 9 then
    held, void_at = unpack('>I6I6', state, 2)
    if mark == 9 then
      left, parted = unpack('>I6I6', state, 14)
      state = string.sub(state, 26)
    else
      state = string.sub(state, 14)
    end
    if mark == 8 and void_at <= clock then held, void_at = 0, 0 end
  end
  -- What a state begins with, as algorithm/encode.go has it.
  local first = string.byte(state, 1)
  if first and (first < 1 or first > 6) and (first < 16 or first > 47) then
    return redis.error_reply('ERR something else is stored under this key')
  end
  if held > version or held == version and left ~= to then
    reply(3, held, left, '')
  else
    local goes, code = parted, 1
    if stored and left == 0 then goes = version end
    if goes == 0 then code = 0 elseif left > 0 then code = 2 end
    local life = max(ttl, keep + margin)
    local claim = pack('>I1I6I6I6I6', 9, version, max(clock + life, void_at), to, goes)
    redis.call('SET', KEYS[i], claim .. state, 'PX', life)
    reply(code, goes, 0, state)
  end
end
return replies
