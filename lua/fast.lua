-- fast.lua: the head of the scripts that decide, for the common case by far: takes
-- of one charge under one fixed window, kept in a short form. It must not pay for
-- the rest, so it comes before the functions are made.
--
-- Provides replies, replied and decided, how many decisions it made: it stops at the
-- first that is not that simple, and the parts that follow go on. If there is none,
-- it returns from the script. Uses what prelude.lua provides.

local FIXED_WINDOW = 1 -- its kind; kinds.lua has them all

-- Tables are made as large as they will be: to let one grow costs more than all
-- else that is done with it.
local replies, replied, decided = {nil, nil, nil, nil, nil, nil, nil}, 0, 0

-- The window's code, as digits.lua has it, nil if it has none. Decisions of one call
-- mostly share it. It is no function: to make one costs as much as to compute it.
local lone_code, lone_window

-- More arguments than keys: not all of them are decisions.
for i = 1, #ARGV <= #KEYS and #ARGV or 0 do
  if #ARGV[i] ~= 41 then break end -- one charge of one limit, and nothing more
  local now, margin, op, _, cost, _, kind, window, quota = unpack('>I6I4I1I1I7I1I1I6I7', ARGV[i])
  if op ~= 0 or kind ~= FIXED_WINDOW or window >= SHORT_WINDOW then break end
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
  local allowed, retry_at = 1, 0
  if reset_at > now then
    if cost > quota - used then
      allowed, retry_at = 0, cost > quota and -1 or reset_at
    elseif used + cost >= SHORT_COUNT then
      break
    elseif cost > 0 then
      used = used + cost
      -- The expiry was set when the window opened: renewed by a process
      -- whose clock stands still, it would make the window immortal.
      if in_digits and used < DIGITS_COUNT then
        redis.call('INCRBY', KEYS[i], cost == 1 and '1' or cost) -- a number costs half as much again
      else
        redis.call('SET', KEYS[i], pack(SHORT_FORM, shape, reset_at, used), 'KEEPTTL')
      end
    end
  elseif cost == 0 or cost >= SHORT_COUNT or cost > quota or now > MAX_INSTANT - window then
    break
  else
    reset_at, used = now + window, cost
    local since = reset_at - DIGITS_EPOCH
    if lone_code and since >= 0 and since < DIGITS_SPAN and used < DIGITS_COUNT then
      state = string.format(DIGITS_FORM, lone_code, since, used)
    else
      state = pack(SHORT_FORM, shape, reset_at, used)
    end
    redis.call('SET', KEYS[i], state, 'PX', window + margin)
  end
  replies[replied + 1], replies[replied + 2], replies[replied + 3], replies[replied + 4] = allowed, used, reset_at, retry_at
  replied, decided = replied + 4, i
end
if decided == #ARGV then return replies end
