-- in_flight.lua: a sliding log with one unit for each decision that is not settled, whatever
-- it costs, as in throttler/algorithm/in_flight.go.

--@ left
(log$.sum < capacity$ and MAX_COUNT or capacity$ - log$.sum)

--@ charge
add_entry(log$, min(cost@, 1), now)

--@ settle
if renews@ == 0 then
  take_from_entry(log$, mark$, 1)
elseif not take_from_entry(log$, mark$, 1) and log$.sum >= capacity$ then
  lapsed = true
end

--@ renew
if renews@ == 1 and not lapsed then add_entry(log$, 1, now) end
