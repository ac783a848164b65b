-- digits.lua: the form of one fixed window alone that Redis keeps as an integer, in no
-- string of its own. algorithm/encode.go describes it.
--
-- Provides window_code, digits_of, read_digits.

-- The code of a window of so many ms, nil if it has none: 100 for seconds, 200 for
-- minutes, 300 for hours, 400 for days, whichever comes first that gives at most 99, and
-- how many.
local function window_code(window)
  local n, unit = window / 1000, 100
  if n > 99 then n, unit = n / 60, 200 end
  if n > 99 then n, unit = n / 60, 300 end
  if n > 99 then n, unit = n / 24, 400 end
  return n >= 1 and n <= 99 and n % 1 == 0 and unit + n or nil
end

-- The digits of a window that has the code, nil if they do not hold it.
local function digits_of(code, at, count)
  local since = at - DIGITS_EPOCH
  if not code or since < 0 or since >= DIGITS_SPAN or count >= DIGITS_COUNT then return nil end
  return string.format(DIGITS_FORM, code, since, count)
end

-- The reset time and the count that digits hold of a window that has the code; nil if
-- they are another's.
local function read_digits(state, code)
  if not (code and string.find(state, '^%d+$')) then return nil end
  local since = tonumber(string.sub(state, 1, DIGITS_FRONT)) - code * DIGITS_SPAN
  if since < 0 or since >= DIGITS_SPAN then return nil end
  return since + DIGITS_EPOCH, tonumber(string.sub(state, DIGITS_FRONT + 1))
end
