-- release.lua: let counts go to another backend, as algorithm has it: Release.
-- It is a script of its own: it asks nothing of a state.
--
-- KEYS[i]  count     of a (policy, key), of one partition
--
-- ARGV[1]  release   packed, numbers big-endian and unsigned:
--                    6 now, Unix ms
--                    4 margin, ms that a key outlives what it is good for
--                    4 ms to remember that the counts are gone
--                    6 version of the view by which they go
--                    6 place that they go to
--
-- Returns  for each count: 0 if there is none, 1 if it was here, 2 if it had
--          left before, 3 if it stays, because a later view has placed it;
--          version; place that it had left to, or 0; its state.

local unpack, pack, max = struct.unpack, struct.pack, math.max
local now, margin, keep, version, to = unpack('>I6I4I4I6I6', ARGV[1])
local replies = {}

local function reply(code, claim_version, place, state)
  local n = #replies
  replies[n + 1], replies[n + 2], replies[n + 3], replies[n + 4] = code, claim_version, place, state
end

for i = 1, #KEYS do
  local stored = redis.call('GET', KEYS[i])
  local ttl = redis.call('PTTL', KEYS[i])
  local state, held, void_at, left = stored or '', 0, 0, 0
  local mark = string.byte(state, 1)
  if mark == 8 or mark == 9 then
    held, void_at = unpack('>I6I6', state, 2)
    if mark == 9 then
      left, state = unpack('>I6', state, 14), string.sub(state, 20)
    else
      state = string.sub(state, 14)
    end
    if void_at <= now then
      held = 0
      if mark == 9 then stored, state, left = nil, '', 0 end
    end
  end
  if held > version or held == version and left ~= to then
    reply(3, held, left, '')
  else
    local life = max(ttl, keep)
    redis.call('SET', KEYS[i], pack('>I1I6I6I6', 9, version, max(now + life, void_at), to) .. state, 'PX', max(ttl, keep + margin))
    local code = 1
    if not stored then code = 0 elseif left > 0 then code = 2 end
    reply(code, held, left, state)
  end
end
return replies
