-- fast.lua: the head of the scripts that decide, for the common case by far: takes
-- of one charge under one fixed window, kept in the short form. It must not pay for
-- the rest, so it comes before the functions are made.
--
-- Provides TAKE, REFUSED, ALLOWED, NUMBERS, replies, replied and decided, how
-- many decisions it made: it stops at the first that is not that simple, and the parts
-- that follow continue there. If there is none, it returns from the script.

local TAKE = 0 -- the operation, as decide.lua packs it
local REFUSED, ALLOWED, NUMBERS = '\0', '\1', '\2' -- how a decision's reply begins
local REFUSED_SHORT, ALLOWED_SHORT = '\0\0\12', '\1\0\12' -- replies before a state of SHORT_BYTES

-- Tables begin as large as most calls need: growth costs more than all else that is
-- done with them.
local replies, replied, decided = {nil, nil, nil, nil, nil, nil, nil}, 0, 0

-- More arguments than keys: not all of them are decisions.
for i = 1, #ARGV <= #KEYS and #ARGV or 0 do
  if #ARGV[i] ~= 41 then break end -- one charge of one limit, and nothing more
  local now, margin, op, _, cost, _, kind, window, quota = unpack('>I6I4I1I1I7I1I1I6I7', ARGV[i])
  if op ~= TAKE or kind ~= FIXED_WINDOW or window >= SHORT_WINDOW then break end
  local shape, reset_at, used = SHORT_WINDOW * FIXED_WINDOW + window, 0, 0
  local state = redis.pcall('GET', KEYS[i])
  if state then
    if #state ~= SHORT_BYTES then break end -- also an error, a table
    local stored
    stored, reset_at, used = unpack(SHORT_FORM, state)
    if stored ~= shape then break end
  end
  local head = ALLOWED_SHORT
  if reset_at > now then
    if cost > quota - used then
      head = REFUSED_SHORT
    elseif used + cost >= SHORT_COUNT then
      break
    elseif cost > 0 then
      state = pack(SHORT_FORM, shape, reset_at, used + cost)
      -- The expiry was set when the window opened: renewed by a process
      -- whose clock stands still, it would make the window immortal.
      redis.call('SET', KEYS[i], state, 'KEEPTTL')
    end
  elseif cost == 0 or cost >= SHORT_COUNT or cost > quota or now > MAX_INSTANT - window then
    break
  else
    state = pack(SHORT_FORM, shape, now + window, cost)
    redis.call('SET', KEYS[i], state, 'PX', window + margin)
  end
  replies[replied + 1] = head
  replies[replied + 2] = state
  replied, decided = replied + 2, i
end
if decided == #ARGV then return table.concat(replies) end
