-- handoff_fast.lua: the head of the script that decides under a placement, as
-- fast.lua is of the other: one take of one charge under one fixed window, whose
-- count is live, with a claim or without. No clock is asked: a claim matters only
-- when the count is dead, and whether it moves was asked when it was made.
--
-- Provides replies and replied. Uses what prelude.lua and digits.lua provide. It returns from the
-- script, or falls through to the parts that follow.

local replies, replied = {}, 0
local FIXED_WINDOW = 1 -- its kind; kinds.lua has them all

if #ARGV == 1 and #ARGV[1] == 41 then -- one charge of one limit, and no arrival
  local now, _, op, _, cost, _, kind, window, quota = unpack('>I6I4I1I1I7I1I1I6I7', ARGV[1])
  if op == 0 and kind == FIXED_WINDOW and window < SHORT_WINDOW then
    local state, claim = redis.pcall('GET', KEYS[1]), ''
    if not state then return {2, 1} end -- missing
    if #state == 13 + SHORT_BYTES and string.byte(state, 1) == 8 then -- claim.lua: the claim of a count that is here
      claim, state = string.sub(state, 1, 13), string.sub(state, 14)
    end
    local code = #state == DIGITS and window_code(window)
    if code then
      local front, used = tonumber(string.sub(state, 1, DIGITS_FRONT)), tonumber(string.sub(state, DIGITS_FRONT + 1))
      local since = front and used and front - code * DIGITS_SPAN or -1
      local reset_at = since + DIGITS_EPOCH
      if since >= 0 and since < DIGITS_SPAN and reset_at > now then
        if cost > quota - used then
          return {0, used, reset_at, cost > quota and -1 or reset_at}
        end
        if used + cost < DIGITS_COUNT then
          if cost > 0 then redis.call('INCRBY', KEYS[1], cost) end
          return {1, used + cost, reset_at, 0}
        end
      end
    elseif #state == SHORT_BYTES then
      local shape, reset_at, used = unpack(SHORT_FORM, state)
      if shape == SHORT_WINDOW * FIXED_WINDOW + window and reset_at > now then
        if cost > quota - used then
          return {0, used, reset_at, cost > quota and -1 or reset_at}
        end
        if used + cost < SHORT_COUNT then
          if cost > 0 then
            used = used + cost
            redis.call('SET', KEYS[1], claim .. pack(SHORT_FORM, shape, reset_at, used), 'KEEPTTL')
          end
          return {1, used, reset_at, 0}
        end
      end
    end
  end
end
