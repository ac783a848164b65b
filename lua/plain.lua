-- plain.lua: the end of the script that decides about counts that do not move.
--
-- KEYS[i]  state     of a (policy, key), one for each charge, in the order of
--                    the decisions and their charges
-- ARGV[i]  decision  packed as decide.lua says
-- Returns  the decisions' replies, one after the other.
--
-- A claim in front of a state is of no interest here: the count continues from
-- the state. One that says that the count is here stays in front, for processes
-- that still move counts.

local general
local next_key = decided + 1
for i = decided + 1, #ARGV do
  if not take_arranged(ARGV[i], next_key) then
    general = general or make_general()
    general(ARGV[i], next_key)
  end
  next_key = next_key + string.byte(ARGV[i], 12)
end
return replies
