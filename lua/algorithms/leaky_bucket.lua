-- leaky_bucket.lua: what a queue has of its own; the rest is bucket.lua's. Its record also
-- has the first of its gaps, which are places that were given back while others were
-- behind them, and their units. A start is computed from the end, which must be exact: what
-- would reach the largest instant is left to the caller, and what leaves a gap.

--@ bring
if at$ < now then at$, fraction$, gaps_at$, gaps_fraction$, gaps$ = now, 0, 0, 0, 0 end

--@ charges
max(at$, now) + ahead$ < MAX_INSTANT

--@ gives back
(mark$ < now or at$ < now or mark$ == at$ and fraction_of_mark$ == fraction$ and gaps$ == 0)

--@ give back
-- The last of a queue gives its place back, but for its first unit's if its start has
-- come.
if mark$ >= now and (at$ > now or at$ == now and fraction$ > 0) then
  local ahead, part = mul_div(charged@, window$, quota$)
  local has_started = at$ - ahead < now or at$ - ahead == now and fraction$ <= part
  ahead, part = mul_div(charged@ - (has_started and max(spent@, 1) or spent@), window$, quota$)
  at$, fraction$ = at$ - ahead, fraction$ - part
  if fraction$ < 0 then at$, fraction$ = at$ - 1, fraction$ + quota$ end
  if at$ < 0 then at$, fraction$ = 0, 0 end -- what reached the largest instant
end
