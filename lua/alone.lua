-- alone.lua: a take of one unit under one fixed window, alone in its call, if the window is
-- open, has room, and is stored as digits. A lone caller waits for each step of the server,
-- and this takes two thirds of what the parts that follow would: it comes before their
-- locals, too.
--
-- It returns from the script what plain.lua says, or falls through with nothing done.

if #KEYS == 1 and #ARGV[1] == BOUNDED_BYTES then
  local ended, past, room = struct.unpack(BOUNDS, ARGV[1], BOUNDS_AT)
  local call, key = redis.call, KEYS[1]
  local state = call('GET', key)
  if state and #state == DIGITS and state > ended and state < past and string.sub(state, DIGITS_FRONT + 1) <= room then
    call('INCR', key)
    return state
  end
end
