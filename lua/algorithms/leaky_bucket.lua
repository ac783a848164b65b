-- leaky_bucket.lua: the part of a leaky bucket that is not in bucket.lua. Its record also has
-- the start of the first gap, and the units of all gaps, which are places given back with
-- others behind them. A start is computed from the end, which must be exact: a charge that
-- would reach the largest instant is left to the caller. So is a refund that leaves a gap.

--@ bring
if at$ < now then at$, fraction$, gaps_at$, gaps_fraction$, gaps$ = now, 0, 0, 0, 0 end

--@ charges
max(at$, now) + ahead$ < MAX_INSTANT

--@ gives back
(mark$ < now or at$ < now or mark$ == at$ and fraction_of_mark$ == fraction$ and gaps$ == 0)

--@ give back
-- The last charge of a queue gives its place back, except for its first unit's place if its
-- start has come.
local drained_until$ = max(now, charged_at$)
if mark$ >= drained_until$ and (at$ > drained_until$ or at$ == drained_until$ and fraction$ > 0) then
  local ahead, part = mul_div(charged@, window$, quota$)
  local has_started = at$ - ahead < drained_until$ or at$ - ahead == drained_until$ and fraction$ <= part
  ahead, part = mul_div(charged@ - (has_started and max(spent@, 1) or spent@), window$, quota$)
  at$, fraction$ = at$ - ahead, fraction$ - part
  if fraction$ < 0 then at$, fraction$ = at$ - 1, fraction$ + quota$ end
  if at$ < 0 then at$, fraction$ = 0, 0 end -- the end had reached the largest instant
end
