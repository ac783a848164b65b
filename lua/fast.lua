-- fast.lua: the head of the script that decides, for the common case by far: takes
-- of one charge under one fixed window, kept in a short form. It must not pay for
-- the rest, so it comes before the functions are made.
--
-- Provides REFUSED, ALLOWED, NUMBERS, replies, replied; and argument, made, next_key:
-- it stops at the first decision that is not that simple, and the parts that follow
-- continue there. If there is none, it returns from the script.

local REFUSED, ALLOWED, NUMBERS = '\0', '\1', '\2' -- how a decision's reply begins, in plain.lua
local REFUSED_SHORT, ALLOWED_SHORT = '\0\0\12', '\1\0\12' -- replies before a state of SHORT_BYTES
local REFUSED_DIGITS, ALLOWED_DIGITS = '\0\0\19', '\1\0\19' -- before one of DIGITS
local BEFORE_DIGITS = '\3\0\19' -- before one of DIGITS as it was before

-- Tables begin as large as most calls need: growth costs more than all else that is
-- done with them.
local replies, replied = {nil, nil, nil, nil, nil, nil, nil}, 0

-- The next decision's argument, how many of that argument's decisions were made, and
-- its first key.
local argument, made, next_key = 1, 0, 1

while argument <= #ARGV do
  if #ARGV[argument] ~= 42 then break end -- one charge of one limit, and nothing more
  local times, now, margin, op, _, cost, _, kind, window, quota = unpack('>I1I6I4I1I1I7I1I1I6I7', ARGV[argument])
  if op ~= TAKE or kind ~= FIXED_WINDOW or window >= SHORT_WINDOW then break end
  local shape = SHORT_WINDOW * FIXED_WINDOW + window
  -- The window's code, as digits.lua has it, nil if it has none. It is no function: to
  -- make one costs as much as to compute it.
  local n, unit = window / 1000, 100
  if n > 99 then n, unit = n / 60, 200 end
  if n > 99 then n, unit = n / 60, 300 end
  if n > 99 then n, unit = n / 24, 400 end
  local code = n >= 1 and n <= 99 and n % 1 == 0 and unit + n or nil

  while made < times do
    local key, head, reset_at, used = KEYS[next_key], ALLOWED_SHORT, 0, 0
    local state = redis.pcall('GET', key)
    local in_digits = state and #state == DIGITS
    if in_digits then
      local front, count = tonumber(string.sub(state, 1, DIGITS_FRONT)), tonumber(string.sub(state, DIGITS_FRONT + 1))
      if not (front and count and code) then break end
      local since = front - code * DIGITS_SPAN
      if since < 0 or since >= DIGITS_SPAN then break end -- another window's
      reset_at, used = since + DIGITS_EPOCH, count
    elseif state then
      if #state ~= SHORT_BYTES then break end -- also an error, a table
      local stored
      stored, reset_at, used = unpack(SHORT_FORM, state)
      if stored ~= shape then break end
    end
    if reset_at > now then
      if cost > quota - used then
        head = in_digits and REFUSED_DIGITS or REFUSED_SHORT
      elseif used + cost >= SHORT_COUNT then
        break
      elseif cost == 0 then
        if in_digits then head = ALLOWED_DIGITS end
      -- The expiry was set when the window opened: renewed by a process whose clock
      -- has stopped, it would keep the window forever.
      elseif in_digits and used + cost < DIGITS_COUNT then
        local sum = redis.pcall('INCRBY', key, cost == 1 and '1' or cost) -- a number costs half as much again
        if type(sum) == 'table' then break end -- almost digits
        head = BEFORE_DIGITS
      else
        state = pack(SHORT_FORM, shape, reset_at, used + cost)
        redis.call('SET', key, state, 'KEEPTTL')
      end
    elseif cost == 0 or cost >= SHORT_COUNT or cost > quota or now > MAX_INSTANT - window then
      break
    else
      state = pack(SHORT_FORM, shape, now + window, cost)
      local stored, since = state, now + window - DIGITS_EPOCH
      if code and since >= 0 and since < DIGITS_SPAN and cost < DIGITS_COUNT then
        stored = string.format(DIGITS_FORM, code, since, cost)
      end
      redis.call('SET', key, stored, 'PX', window + margin)
    end
    replies[replied + 1] = head
    replies[replied + 2] = state
    replied, made, next_key = replied + 2, made + 1, next_key + 1
  end
  if made < times then break end
  argument, made = argument + 1, 0
end
if argument > #ARGV then return table.concat(replies) end
