-- sliding_window.lua: the start of the current window, its count, and the count of the window
-- before, as in throttler/algorithm/sliding_window.go.

--@ bring
local elapsed$ = now - start$
if elapsed$ < 0 then
  elapsed$ = 0
elseif elapsed$ >= window$ then -- the window has ended
  elapsed$ = elapsed$ % window$
  previous$ = now - elapsed$ == start$ + window$ and current$ or 0
  start$, current$ = now - elapsed$, 0
end

--@ left
capacity$ - min(current$ + ceil_div(previous$, window$ - elapsed$, window$), MAX_COUNT)

--@ charge
current$ = current$ + cost@
if current$ > MAX_COUNT then current$ = MAX_COUNT end

--@ give back
if mark$ == start$ then
  current$ = max(current$ - amount@, 0)
elseif mark$ == start$ - window$ then
  previous$ = max(previous$ - amount@, 0)
end

--@ counts until
(current$ > 0 and min(start$ + 2 * window$, MAX_INSTANT) or previous$ > 0 and min(start$ + window$, MAX_INSTANT) or 0)
