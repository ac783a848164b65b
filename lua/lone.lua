-- lone.lua: one fixed window alone in its state, which is digits if it can be: Redis keeps
-- it as an integer, and counts it up by itself. algorithm/encode.go has the form.
--
-- A decision has 27 bytes more, in which the caller says how the digits compare: the
-- window is open if they are above the first 19, and below the next 4; and one unit fits if
-- the last 4 of them, what is used, are at most the last 4 bytes, which are blank unless the
-- decision is a take of one unit, and 9998 if the quota allows what digits cannot hold.

--@ alone
-- A lone caller waits for each step of the server: what follows are several times as many.
if #KEYS == 1 then
  local ended, past, room = struct.unpack('c19c4c4', ARGV[1], #ARGV[1] - 26)
  local state = room ~= '    ' and redis.call('GET', KEYS[1])
  if state and #state == 19 and state > ended and state < past then
    if string.sub(state, 16) <= room then
      redis.call('INCR', KEYS[1])
      return state
    elseif room < '9998' then
      return '\0\0\19' .. state
    end
  end
end

--@ begin
local EPOCH = 1735689600000

--@ count
      if room ~= '    ' and body_1 and #body_1 == 19 and body_1 > ended and body_1 < past then
        if sub(body_1, 16) <= room then
          local used = try('INCR', keys[first])
          if type(used) == 'number' then
            reply, changed[keys[first]] = body_1, true
          elseif not find(used.err, 'integer', 1, true) then
            return used -- the server takes no writes
          end
          break -- done, or only nearly digits
        elseif room < '9998' then
          reply = '\0\0\19' .. body_1
          break
        end
      end

--@ digits
      if body_1 and #body_1 == 19 and past > ended and sub(body_1, 1, 3) == sub(ended, 1, 3) and find(body_1, '^%d+$') then
        reset_at1, used1, size_1 = sub(body_1, 4, 15) + EPOCH, sub(body_1, 16) + 0, '\0\19'
      else

--@ write
          if claim_1 == '' and past > ended and used1 < 10000 and reset_at1 - EPOCH < 1000000000000 then
            body_1, size_1 = format('%s%012.0f%04.0f', sub(ended, 1, 3), reset_at1 - EPOCH, used1), '\0\19'
          end
