-- fast.lua: takes of one charge under one fixed window, kept in a short form: the common
-- case by far. It must not pay for the rest, so it comes before the functions are made.
--
-- Provides REFUSED, ALLOWED, NUMBERS, replies, replied; and argument, made, next_key:
-- it stops at the first decision that is not that simple, and the parts that follow
-- continue there. If there is none, it returns from the script.

local REFUSED, ALLOWED, NUMBERS = '\0', '\1', '\2' -- how a decision's reply begins, in plain.lua
local REFUSED_SHORT, ALLOWED_SHORT = '\0\0\12', '\1\0\12' -- replies before a state of SHORT_BYTES
local REFUSED_DIGITS, ALLOWED_DIGITS = '\0\0\19', '\1\0\19' -- before one of DIGITS

-- Tables begin as large as most calls need: growth costs more than all else that is
-- done with them.
local replies, replied = {nil, nil, nil, nil, nil, nil, nil}

-- The next decision's argument, how many of that argument's decisions were made, and
-- its first key.
local argument, made, next_key = 1, 0, 1

-- The keys that were written since all were read: a call may have two decisions about
-- one key. It is nil until all are read.
local changed

local keys, try, sub = KEYS, redis.pcall, string.sub -- each of them is used often
while argument <= #ARGV do
  local packed = ARGV[argument]
  if #packed ~= BOUNDED_BYTES then break end -- one charge of one window, and the bounds of what it has stored
  local times, cost, quota, ended, past, room = unpack(BOUNDED, packed)
  local now, margin, kind, window, shape, code -- what only windows in other forms, or new ones, need

  -- One command reads all keys: to call it costs more than to run it. Each state is
  -- replaced by the reply to its decision, or is that: see plain.lua.
  if not changed then
    replies = redis.call('MGET', spread(KEYS))
    changed = {}
  end

  local first = next_key
  for i = first, first + times - 1 do
    local key, state = keys[i], replies[i]
    if changed[key] then
      state = redis.call('GET', key)
      replies[i] = state
    end
    if state and #state == DIGITS and state > ended and state < past then
      -- The expiry was set when the window opened: renewed by a process whose clock has
      -- stopped, it would keep the window forever.
      if sub(state, DIGITS_FRONT + 1) <= room then
        if type(try('INCR', key)) == 'table' then break end -- almost digits, or the server takes no writes
        changed[key] = true
      else
        local a, b, c, d = string.byte(state, DIGITS_FRONT + 1, DIGITS)
        local used = a * 1000 + b * 100 + c * 10 + d - 53328 -- '0' is 48
        if cost > quota - used then
          replies[i] = REFUSED_DIGITS .. state
        elseif cost == 0 then
          replies[i] = ALLOWED_DIGITS .. state
        elseif used + cost < DIGITS_COUNT then
          if type(try('INCRBY', key, cost)) == 'table' then break end
          changed[key] = true
        else
          break
        end
      end
    else
      if not now then
        local _
        _, now, margin, _, _, _, _, kind, window = unpack('>I1I6I4I1I1I7I1I1I6', packed)
        shape, code = SHORT_WINDOW * kind + window, past > ended and sub(ended, 1, 3)
      end
      local used, reset_at = 0, 0
      if state and #state == DIGITS then
        if not (code and string.find(state, '^' .. code .. '%d+$')) then break end -- another window's
      elseif state then
        if #state ~= SHORT_BYTES then break end
        local stored
        stored, reset_at, used = unpack(SHORT_FORM, state)
        if stored ~= shape then break end
      end
      if reset_at > now then
        if cost > quota - used then
          replies[i] = REFUSED_SHORT .. state
        elseif cost == 0 then
          replies[i] = ALLOWED_SHORT .. state
        else
          if used + cost >= SHORT_COUNT then break end
          state = pack(SHORT_FORM, shape, reset_at, used + cost)
          redis.call('SET', key, state, 'KEEPTTL')
          replies[i], changed[key] = ALLOWED_SHORT .. state, true
        end
      elseif cost == 0 or cost >= SHORT_COUNT or cost > quota or now > MAX_INSTANT - window then
        break
      else
        local condition = state and 'XX' or 'NX' -- MGET reads what is no string as nothing
        reset_at = now + window
        if kind == ALIGNED_WINDOW then reset_at = reset_at - now % window end
        state = pack(SHORT_FORM, shape, reset_at, cost)
        local stored = state
        if code and cost < DIGITS_COUNT then stored = string.format(DIGITS_FORM, code, reset_at - DIGITS_EPOCH, cost) end
        if not redis.call('SET', key, stored, 'PX', reset_at - now + margin, condition) then break end
        replies[i], changed[key] = ALLOWED_SHORT .. state, true
      end
    end
    next_key = i + 1
  end
  made = next_key - first
  if made < times then break end
  argument, made = argument + 1, 0
end
if argument > #ARGV then return table.concat(replies) end
replied = next_key - 1
for i = next_key, #replies do replies[i] = nil end -- states that were read
