-- fixed_window.lua: as algorithm/fixed_window.go has it: a count and the window's reset
-- time, which is set when the window opens and never again. An aligned window opens on a
-- multiple of its length, and a calendar's window ends when the caller says, in place of the
-- quota: ENDS is when a window ends that opens now.

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
