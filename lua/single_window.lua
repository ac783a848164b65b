-- single_window.lua: a state of a single fixed window is stored as 19 digits where they fit:
-- Redis keeps them as an integer, and INCR adds a unit. throttler/algorithm/encode.go describes them.
-- Otherwise Redis takes 55 % more CPU for a decision: the rows redis/allowed of test/bench.
--
-- A decision has 27 more bytes, which the script compares with the digits. The window is open
-- if the digits are above the first 19 bytes, and below the next 4. One unit fits if the last
-- 4 digits, the used units, are at most the last 4 bytes. Those are blank unless the decision
-- is a take of one unit, and 9998 if the quota is 9999 or more.

--@ begin
local EPOCH = 1735689600000

-- Reports whether a state of 19 bytes is the digits of a shape, a kind and a window.
local function is_digits(state, shape)
  local UNITS, FIXED, ALIGNED = {1000, 60000, 3600000, 86400000}, 281474976710656, 562949953421312
  if not find(state, '^%d+$') then return false end
  local code, kind = sub(state, 1, 3) + 0, FIXED
  if code > 499 then code, kind = code - 400, ALIGNED end
  local count = code % 100
  return kind + count * (UNITS[(code - count) / 100] or 0) == shape
end

--@ count
      if room ~= '    ' and body_1 and #body_1 == 19 and body_1 > ended and body_1 < past then
        if sub(body_1, 16) <= room then
          local used = try('INCR', keys[first])
          if type(used) == 'number' then
            reply, changed[keys[first]] = body_1, true
          elseif not find(used.err, 'integer', 1, true) then
            return used -- the server accepts no writes
          end
          break -- done, or no integer: the caller decides
        elseif room < '9998' then
          reply = '\0\0\19' .. body_1
          break
        end
      end

--@ digits
      if body@ and #body@ == 19 and is_digits(body@, shape$) then -- with other charges, it becomes a row
        reset_at$, used$, size@ = sub(body@, 4, 15) + EPOCH, sub(body@, 16) + 0, '\0\19'
      else

--@ write
          if claim_1 == '' and past > ended and used1 < 10000 and reset_at1 >= EPOCH and reset_at1 - EPOCH < 1000000000000 then
            body_1, size_1 = format('%s%012.0f%04.0f', sub(ended, 1, 3), reset_at1 - EPOCH, used1), '\0\19'
          end
