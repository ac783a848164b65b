-- alone.lua: a take of one unit under one fixed window, alone in its call, if the window is
-- open and stored as digits. A lone caller waits for each step of the server, and these are
-- two thirds of those that the parts that follow would take: it comes before their locals,
-- too. If the window is to be opened, or stored in another form, its state is read again.
--
-- It returns from the script what plain.lua says, or falls through with nothing done.

if #KEYS == 1 and #ARGV[1] == BOUNDED_BYTES then
  local ended, past, room = struct.unpack(BOUNDS, ARGV[1], BOUNDS_AT)
  local call, key = redis.call, KEYS[1]
  local state = room ~= NO_ROOM and call('GET', key)
  if state and #state == DIGITS and state > ended and state < past then
    if string.sub(state, DIGITS_FRONT + 1) <= room then
      call('INCR', key)
      return state
    elseif room < MOST_ROOM then
      return REFUSED_DIGITS .. state
    end
  end
end
