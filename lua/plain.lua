-- plain.lua: the end of the script that decides about counts that do not move.
--
-- KEYS[i]  state     of a (policy, key), one for each charge, in the order of
--                    the decisions and their charges
-- ARGV[i]  decision  packed as decide.lua says; or several, of the same bytes but
--                    of different keys
-- Returns  the decisions' replies, one after the other, in one string:
--            0 if refused, 1 if allowed; then for each charge
--              2 length and so many bytes, the state that its key has now, in the
--                form of algorithm/encode.go; none if it has no state
--          or, from alone.lua or fast.lua, 19 digits, which are the state that the key
--          had before: allowed
--          or, from general.lua:
--            2, 2 how many numbers, and for each 8, signed, the reply of decide.lua
--
-- Uses argument, made, next_key, replies, replied of fast.lua; states of
-- arranged.lua; take_arranged of take.lua; settle_arranged of settle.lua; and
-- general.lua, as make_general.
--
-- States say all that there is to say of a decision: used, remaining, when to retry.
-- The caller reads it out of them, as it does when it peeks, and no script computes it.

local general
for i = argument, #ARGV do
  local packed = ARGV[i]
  local times = string.byte(packed)
  local op, charges = string.byte(packed, 12, 13)
  local has_log = op >= HAS_LOG
  local arranged = settle_arranged
  if op == TAKE or op == TAKE + HAS_LOG then arranged = take_arranged elseif has_log then arranged = nil end
  for _ = made + 1, times do
    for c = 1, charges do
      if has_log then -- it may be long
        local front = redis.pcall('GETRANGE', KEYS[next_key + c - 1], '0', FRONT_END)
        states[c] = front ~= '' and front
      else
        states[c] = redis.pcall('GET', KEYS[next_key + c - 1])
      end
    end
    if not (arranged and arranged(packed, charges, next_key)) then
      general = general or make_general()
      replied = replied + 1
      replies[replied] = general(packed, next_key)
    end
    next_key = next_key + charges
  end
  made = 0
end
return table.concat(replies)
