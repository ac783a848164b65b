-- bucket.lua: a token bucket, and the part that a leaky bucket shares with it, as in
-- throttler/algorithm/bucket.go: the instant at which the bucket is drained, in ms and a fraction in
-- units of 1/quota ms; the rate and the capacity of the last charge; and the latest time of a
-- charge, by the clock furthest ahead.

--@ prepare
-- The time that the cost takes to drain.
local ahead$, part$ = mul_div(cost@, window$, quota$)

--@ room
-- The time that the rest of the capacity takes to drain, -1 if the cost is above the capacity.
-- A rest of MAX_COUNT is never in use: no count is larger.
local full$, full_part$ = -1, 0
if capacity$ - cost@ == MAX_COUNT then full$ = MAX_INSTANT
elseif cost@ <= capacity$ then full$, full_part$ = mul_div(capacity$ - cost@, window$, quota$) end

--@ known
rate$ == quota$ and fraction$ < quota$

--@ bring
if at$ < now then at$, fraction$ = now, 0 end

--@ left
capacity$ - ceil_level(at$ - now, quota$, fraction$, window$)

--@ fits
(at$ - now < full$ or at$ - now == full$ and fraction$ <= full_part$)

--@ charge
at$, fraction$, rate$, most$ = at$ + ahead$, fraction$ - (quota$ - part$), quota$, capacity$ -- a sum might be above 2^53
if fraction$ < 0 then fraction$ = fraction$ + quota$ else at$ = at$ + 1 end
if at$ > MAX_INSTANT then at$ = MAX_INSTANT end
if charged_at$ < now then charged_at$ = now end

--@ give back
-- A clock behind the one that charged last would give back what had drained by then.
local drained_until$ = max(now, charged_at$)
if mark$ >= drained_until$ and (at$ > drained_until$ or at$ == drained_until$ and fraction$ > 0) then
  local ahead, part = mul_div(amount@, window$, quota$)
  local left = mark$ - drained_until$ -- only the part that has not drained comes back
  if left < ahead or left == ahead and fraction_of_mark$ < part then ahead, part = left, fraction_of_mark$ end
  local waits, rest = mul_div(capacity$, window$, quota$)
  if fraction_of_mark$ < quota$ and (left > waits or left == waits and fraction_of_mark$ > rest)
      and (at$ > mark$ or at$ == mark$ and fraction$ > fraction_of_mark$) then
    -- The charge waits for its start, and later charges keep the starts that they were given.
    ahead, part = ahead - (at$ - mark$), part - (fraction$ - fraction_of_mark$)
    if part < 0 then ahead, part = ahead - 1, part + quota$
    elseif part >= quota$ then ahead, part = ahead + 1, part - quota$ end
    if ahead < 0 then ahead, part = 0, 0 end
  end
  at$, fraction$ = at$ - ahead, fraction$ - part
  if fraction$ < 0 then at$, fraction$ = at$ - 1, fraction$ + quota$ end
  if at$ < drained_until$ then at$, fraction$ = drained_until$, 0 end
end

--@ counts until
(fraction$ > 0 and min(at$ + 1, MAX_INSTANT) or at$)

--@ longest
max(2 * window$, at$ + 1 - charged_at$)
