-- fast.lua: the head of decide.lua, for the common case by far: one take of
-- one charge under one fixed window, kept in the form that takes 12 bytes. It
-- must not pay for the rest, so it stands before the functions are made.

local unpack, pack = struct.unpack, struct.pack

if #ARGV == 1 and #ARGV[1] == 41 then
  local now, margin, op, _, cost, _, kind, window, quota = unpack('>I6I4I1I1I7I1I1I6I7', ARGV[1])
  if (op == 0 or op == 2) and kind == 1 and window < 268435456 then
    local state = redis.call('GET', KEYS[1])
    local shape, reset_at, used = 268435456 + window, 0, 0
    local stored = shape
    if state then
      stored = 0
      if #state == 12 then stored, reset_at, used = unpack('>I4I6I2', state) end
    end
    if stored == shape then
      if reset_at > now then
        if cost > quota - used then
          return {0, used, reset_at, cost > quota and -1 or reset_at}
        end
        if used + cost < 65536 then
          if cost > 0 then
            used = used + cost
            -- The expiry was set when the window opened: renewed by a process
            -- whose clock stands still, it would make the window immortal.
            redis.call('SET', KEYS[1], pack('>I4I6I2', shape, reset_at, used), 'KEEPTTL')
          end
          return {1, used, reset_at, 0}
        end
      elseif cost > 0 and cost < 65536 and cost <= quota then
        reset_at = now + window
        redis.call('SET', KEYS[1], pack('>I4I6I2', shape, reset_at, cost), 'PX', window + margin)
        return {1, cost, reset_at, 0}
      end
    end
  end
end
