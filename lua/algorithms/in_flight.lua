-- in_flight.lua: as algorithm/in_flight.go has it: a sliding log with a unit for each
-- decision that is not settled, whatever it costs.

--@ left
(log$.sum < capacity$ and MAX_COUNT or capacity$ - log$.sum)

--@ charge
add_entry(log$, min(cost@, 1), now)

--@ settle
if charged@ <= MAX_COUNT then
  take_from_entry(log$, mark$, 1)
elseif not take_from_entry(log$, mark$, 1) and log$.sum >= capacity$ then
  lapsed = true
end

--@ renew
if charged@ > MAX_COUNT and not lapsed then add_entry(log$, 1, now) end
