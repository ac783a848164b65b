-- fast.lua: the head of the scripts that decide, for the common case by far: takes
-- of one charge under one fixed window, kept in a short form. It must not pay for
-- the rest, so it comes before the functions are made.
--
-- Provides REFUSED, ALLOWED, NUMBERS, replies, replied and decided, how many
-- decisions it made: it stops at the first that is not that simple, and the parts
-- that follow continue there. If there is none, it returns from the script.

local REFUSED, ALLOWED, NUMBERS = '\0', '\1', '\2' -- how a decision's reply begins
local REFUSED_SHORT, ALLOWED_SHORT = '\0\0\12', '\1\0\12' -- replies before a state of SHORT_BYTES
local REFUSED_DIGITS, ALLOWED_DIGITS = '\0\0\19', '\1\0\19' -- before one of DIGITS

-- Tables begin as large as most calls need: growth costs more than all else that is
-- done with them.
local replies, replied, decided = {nil, nil, nil, nil, nil, nil, nil}, 0, 0

-- The window's code, as digits.lua has it, nil if it has none. Decisions of one call
-- mostly share it. It is no function: to make one costs as much as to compute it.
local lone_code, lone_window

-- More arguments than keys: not all of them are decisions.
for i = 1, #ARGV <= #KEYS and #ARGV or 0 do
  if #ARGV[i] ~= 41 then break end -- one charge of one limit, and nothing more
  local now, margin, op, _, cost, _, kind, window, quota = unpack('>I6I4I1I1I7I1I1I6I7', ARGV[i])
  if op ~= TAKE or kind ~= FIXED_WINDOW or window >= SHORT_WINDOW then break end
  if window ~= lone_window then
    local n, unit = window / 1000, 100
    if n > 99 then n, unit = n / 60, 200 end
    if n > 99 then n, unit = n / 60, 300 end
    if n > 99 then n, unit = n / 24, 400 end
    lone_window, lone_code = window, n >= 1 and n <= 99 and n % 1 == 0 and unit + n or nil
  end
  local shape, reset_at, used = SHORT_WINDOW * FIXED_WINDOW + window, 0, 0
  local state = redis.pcall('GET', KEYS[i])
  local in_digits = state and #state == DIGITS
  if in_digits then
    local front, count = tonumber(string.sub(state, 1, DIGITS_FRONT)), tonumber(string.sub(state, DIGITS_FRONT + 1))
    if not (front and count and lone_code) then break end
    local since = front - lone_code * DIGITS_SPAN
    if since < 0 or since >= DIGITS_SPAN then break end -- another window's
    reset_at, used = since + DIGITS_EPOCH, count
  elseif state then
    if #state ~= SHORT_BYTES then break end -- also an error, a table
    local stored
    stored, reset_at, used = unpack(SHORT_FORM, state)
    if stored ~= shape then break end
  end
  local head = ALLOWED_SHORT
  if reset_at > now then
    if cost > quota - used then
      head = in_digits and REFUSED_DIGITS or REFUSED_SHORT
    elseif used + cost >= SHORT_COUNT then
      break
    elseif cost > 0 then
      state = pack(SHORT_FORM, shape, reset_at, used + cost)
      -- The expiry was set when the window opened: renewed by a process whose clock
      -- has stopped, it would keep the window forever.
      if in_digits and used + cost < DIGITS_COUNT then
        local sum = redis.pcall('INCRBY', KEYS[i], cost == 1 and '1' or cost) -- a number costs half as much again
        if type(sum) == 'table' then break end -- almost digits
      else
        redis.call('SET', KEYS[i], state, 'KEEPTTL')
      end
    elseif in_digits then
      head = ALLOWED_DIGITS
    end
  elseif cost == 0 or cost >= SHORT_COUNT or cost > quota or now > MAX_INSTANT - window then
    break
  else
    state = pack(SHORT_FORM, shape, now + window, cost)
    local stored, since = state, now + window - DIGITS_EPOCH
    if lone_code and since >= 0 and since < DIGITS_SPAN and cost < DIGITS_COUNT then
      stored = string.format(DIGITS_FORM, lone_code, since, cost)
    end
    redis.call('SET', KEYS[i], stored, 'PX', window + margin)
  end
  replies[replied + 1] = head
  replies[replied + 2] = state
  replied, decided = replied + 2, i
end
if decided == #ARGV then return table.concat(replies) end
