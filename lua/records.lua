-- records.lua: the records of a state: which is whose, and their bytes.
--
-- Provides encode, arrange. Uses what prelude.lua and
-- kinds.lua provide. A limit is {algorithm, kind, window, quota, capacity}.

-- The most records of one state.
local MAX_RECORDS = 32

-- The bytes of a state of these records.
local function encode(records)
  local r = records[1]
  if #records == 1 and r.algorithm.has_short_form and r.window < SHORT_WINDOW and r.count < SHORT_COUNT then
    return pack(SHORT_FORM, r.kind * SHORT_WINDOW + r.window, r.at, r.count)
  end
  local parts = {}
  for i = 1, #records do parts[i] = records[i].algorithm.write(records[i]) end
  return table.concat(parts)
end

-- Puts the limits' records first, in their order, adding those that are
-- missing; with them the places of those that were there. A record is a
-- limit's own by kind and window. A limit without one takes over the first
-- live record of its algorithm that no limit owns: what a limit whose window
-- was changed left behind. Other records stay behind while they live.
local function arrange(records, limits, now)
  local own, owned = {}, {}
  for i = 1, #limits do
    for j = 1, #records do
      if records[j].kind == limits[i].kind and records[j].window == limits[i].window then
        own[i], owned[j] = j, true
      end
    end
  end
  for i = 1, #limits do
    local family = limits[i].algorithm.family
    for j = 1, #records do
      local r = records[j]
      if not own[i] and not owned[j] and r.algorithm.family == family and r.algorithm.reset_at(r, now) > now then
        own[i], owned[j] = j, true
      end
    end
  end
  local arranged = {}
  for i = 1, #limits do
    local l, r = limits[i], records[own[i]]
    if r then
      if l.algorithm.adopt then l.algorithm.adopt(r, l, now) end
      r.algorithm, r.kind, r.window = l.algorithm, l.kind, l.window
    end
    arranged[i] = r or l.algorithm:new(l.kind, l.window)
  end
  for j = 1, #records do
    local r = records[j]
    if not owned[j] and #arranged < MAX_RECORDS and r.algorithm.reset_at(r, now) > now then
      arranged[#arranged + 1] = r
    end
  end
  return arranged, own
end
