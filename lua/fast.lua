-- fast.lua: the head of the scripts that decide, for the common case by far: one
-- take of one charge under one fixed window, kept in the short form. It must not
-- pay for the rest, so it comes before the functions are made.
--
-- Uses what prelude.lua provides. It returns from the script, or
-- falls through to the parts that follow.

local FIXED_WINDOW = 1 -- its kind; kinds.lua has them all

if #ARGV == 1 and #ARGV[1] == 41 then -- one charge of one limit, and nothing more
  local now, margin, op, _, cost, _, kind, window, quota = unpack('>I6I4I1I1I7I1I1I6I7', ARGV[1])
  if op == 0 and kind == FIXED_WINDOW and window < SHORT_WINDOW then
    local state = redis.call('GET', KEYS[1])
    local shape, reset_at, used = SHORT_WINDOW * FIXED_WINDOW + window, 0, 0
    local stored = shape
    if state then
      stored = 0
      if #state == SHORT_BYTES then stored, reset_at, used = unpack(SHORT_FORM, state) end
    end
    if stored == shape then
      if reset_at > now then
        if cost > quota - used then
          return {0, used, reset_at, cost > quota and -1 or reset_at}
        end
        if used + cost < SHORT_COUNT then
          if cost > 0 then
            used = used + cost
            -- The expiry was set when the window opened: renewed by a process
            -- whose clock stands still, it would make the window immortal.
            redis.call('SET', KEYS[1], pack(SHORT_FORM, shape, reset_at, used), 'KEEPTTL')
          end
          return {1, used, reset_at, 0}
        end
      elseif cost > 0 and cost < SHORT_COUNT and cost <= quota then
        reset_at = now + window
        redis.call('SET', KEYS[1], pack(SHORT_FORM, shape, reset_at, cost), 'PX', window + margin)
        return {1, cost, reset_at, 0}
      end
    end
  end
end
