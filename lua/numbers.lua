-- numbers.lua: exact arithmetic in doubles, as in throttler/algorithm/exact.go. No result above 2^53 is
-- used.

--@ all
-- Returns a * b / c rounded down and the remainder, or MAX_COUNT and 0 if the quotient is larger.
local function mul_div(a, b, c)
  local product = a * b
  if product < MAX_COUNT then
    local rest = product % c
    return (product - rest) / c, rest
  end
  -- a * b / c = whole + part * b / c. The last term is computed in base 2^k, from b's first
  -- digit on, with the largest k that keeps c * 2^k within 2^52.
  local part = a % c
  local whole = (a - part) / c * b
  local base, place = 2, 1
  while base * 2 <= 4503599627370496 / c do base = base * 2 end
  while place * base <= b do place = place * base end
  local quotient, rest = 0, 0
  while place >= 1 do
    local digit = (b - b % place) / place
    b = b % place
    local high, low = rest * base, digit * part -- below 2^53, unless base is 2
    if base > 2 then
      rest = high % c
      local rest_low = low % c
      quotient = quotient * base + (high - rest) / c + (low - rest_low) / c
      if rest >= c - rest_low then
        rest, quotient = rest - (c - rest_low), quotient + 1
      else
        rest = rest + rest_low
      end
    else
      quotient = quotient + quotient
      if rest >= c - rest then
        rest, quotient = rest - (c - rest), quotient + 1
      else
        rest = rest + rest
      end
      if digit > 0 then
        if rest >= c - part then
          rest, quotient = rest - (c - part), quotient + 1
        else
          rest = rest + part
        end
      end
    end
    place = place / base
  end
  if whole > MAX_COUNT - quotient then return MAX_COUNT, 0 end
  return whole + quotient, rest
end

-- Returns a * b / c rounded up.
local function ceil_div(a, b, c)
  local quotient, rest = mul_div(a, b, c)
  return rest > 0 and quotient + 1 or quotient
end

--@ level
-- Returns (ms * quota + fraction) / window rounded up, at most MAX_COUNT.
local function ceil_level(ms, quota, fraction, window)
  local level, rest = mul_div(ms, quota, window)
  local part = fraction % window -- rest + fraction might be above 2^53
  rest = rest + part
  return min(level + (fraction - part) / window + (rest > window and 2 or rest > 0 and 1 or 0), MAX_COUNT)
end
