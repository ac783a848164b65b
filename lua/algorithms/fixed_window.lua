-- fixed_window.lua: a count and the window's reset time, which is set only when the window
-- opens, as in throttler/algorithm/fixed_window.go. An aligned window opens on a multiple of its length.
-- ENDS is the end of a window that opens now; the caller passes a calendar's.

--@ bring
if reset_at$ <= now then used$ = 0 end

--@ left
capacity$ - used$

--@ charge
if reset_at$ <= now then reset_at$ = min(ENDS, MAX_INSTANT) end
used$ = used$ + cost@
if used$ > MAX_COUNT then used$ = MAX_COUNT end

--@ give back
if mark$ == reset_at$ then used$ = max(used$ - amount@, 0) end

--@ counts until
reset_at$
