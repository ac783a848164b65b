-- records.lua: the records of a state: which is whose, and their bytes.
--
-- Provides encode, encode_rows, sizes_of_logs, nearest_limit, arrange, hold. Uses
-- mul_div of numbers.lua; MAX_RECORDS, ENDS_FLAG, GAPS_FLAG, RINGS, RINGS_FORM of state.lua.
--
-- A limit is {algorithm, kind, window, quota, capacity}.

-- The bytes of records. Their logs are in them, or are rings.
local function encode_rows(records, as_rings)
  local parts = {}
  for i = 1, #records do
    local r = records[i]
    parts[i] = r.algorithm.write(r, as_rings)
    if r.ends_at or r.gaps then
      local flags = (r.ends_at and ENDS_FLAG or 0) + (r.gaps and GAPS_FLAG or 0)
      parts[i] = string.char(r.kind + flags) .. string.sub(parts[i], 2)
      if r.ends_at then parts[i] = parts[i] .. pack('>I6', r.ends_at) end
      if r.gaps then parts[i] = parts[i] .. pack('>I6I7I7', r.gaps_at, r.gaps_fraction, r.gaps) end
    end
  end
  local rows = table.concat(parts)
  return as_rings and pack(RINGS_FORM, RINGS, #rows) .. rows or rows
end

-- How many entries the logs of records have, and how many slots their rings.
local function sizes_of_logs(records)
  local entries, slots = 0, 0
  for i = 1, #records do
    local r = records[i]
    if r.algorithm.has_log then entries, slots = entries + r.entries, slots + (r.slots or 0) end
  end
  return entries, slots
end

-- The bytes of a state of these records. Short logs are in the rows: a state that one
-- read brings as a whole is best written as a whole.
local function encode(records)
  local r = records[1]
  if #records == 1 and not r.ends_at and r.algorithm.has_short_form and r.window < SHORT_WINDOW and r.count < SHORT_COUNT then
    return pack(SHORT_FORM, r.kind * SHORT_WINDOW + r.window, r.at, r.count)
  end
  if sizes_of_logs(records) <= MAX_IN_ROWS then return encode_rows(records) end
  local slots = {}
  for i = 1, #records do
    r = records[i]
    if r.algorithm.has_log then slots[#slots + 1] = r.algorithm.write_slots(r) end
  end
  return encode_rows(records, true) .. table.concat(slots)
end

-- Whether the window a is nearer to w than b is, by their ratio: exactly, for two ratios
-- that differ may be one double.
local function nearer(a, b, w)
  return mul_div(max(a, w), min(b, w), min(a, w)) < max(b, w)
end

-- What counts under l: its own record, or, if there is none, what it adopts from the
-- record of its family whose window is nearest; nil if there is none either. A copy
-- if it is not l's own, or has another quota.
local function under(l, records)
  local nearest
  for i = 1, #records do
    local r = records[i]
    if r.kind == l.kind and r.window == l.window then
      if not r.quota or r.quota == l.quota then return r end
      nearest = r
      break
    end
    if r.algorithm.family == l.algorithm.family and (not nearest or nearer(r.window, nearest.window, l.window)) then
      nearest = r
    end
  end
  if not nearest then return nil end
  local r = {}
  for name, value in pairs(nearest) do r[name] = value end
  r.algorithm, r.kind, r.ends_at = l.algorithm, l.kind, nil
  l.algorithm.adopt(r, l)
  return r
end

-- Whether a record is a limit's own; the place of the limit of its family whose
-- window is nearest, nil if there is none.
local function nearest_limit(r, limits)
  local nearest
  for i = 1, #limits do
    local l = limits[i]
    if r.kind == l.kind and r.window == l.window then return true, i end
    if r.algorithm.family == l.algorithm.family and (not nearest or nearer(l.window, limits[nearest].window, r.window)) then
      nearest = i
    end
  end
  return false, nearest
end

-- The limits' records, in their order, new ones where there are none; and behind them
-- the live records that match no limit: another process may still run the policy that
-- they belong to. A record that this policy keeps alive ends where its own left it.
local function arrange(records, limits, now)
  local same = #records == #limits
  for i = 1, same and #limits or 0 do
    local r, l = records[i], limits[i]
    same = same and r.kind == l.kind and r.window == l.window and (not r.quota or r.quota == l.quota)
  end
  if same then return records end
  local arranged = {}
  for i = 1, #limits do
    arranged[i] = under(limits[i], records) or limits[i].algorithm:new(limits[i].kind, limits[i].window)
  end
  for i = 1, #records do
    local r = records[i]
    if #arranged < MAX_RECORDS and not nearest_limit(r, limits) and not (r.ends_at and r.ends_at <= now) and r.algorithm.reset_at(r, now) > now then
      arranged[#arranged + 1] = r
    end
  end
  return arranged
end

-- What the records of other policies leave of limits, once records are arranged: for each
-- limit that some hold, {used, reset_at, retry_at, next_at}; nil if there are none. Each is held by
-- the limit that is nearest to it: the charges in a shorter one are among those that the
-- limit counts, and a longer one, which has charges that the limit has forgotten, is held
-- at the limit's rate. Buckets have all charges since they were empty.
local function hold(records, limits, cost, now)
  local held
  for i = #limits + 1, #records do
    local r = records[i]
    local _, nearest = nearest_limit(r, limits)
    if nearest and not r.quota then
      local l = limits[nearest]
      local longer = {capacity = mul_div(l.capacity, max(r.window, l.window), l.window)}
      local used = r.algorithm.used(r, longer, now) - (longer.capacity - l.capacity)
      if used > 0 then
        local ends_at = r.ends_at or MAX_INSTANT
        held = held or {}
        local h = held[nearest] or {used = 0, reset_at = 0, retry_at = 0, next_at = 0}
        held[nearest] = h
        h.used = max(h.used, used)
        h.reset_at = max(h.reset_at, min(r.algorithm.retry_at(r, longer, l.capacity, now), ends_at))
        if used >= l.capacity then h.next_at = max(h.next_at, min(r.algorithm.retry_at(r, longer, 1, now), ends_at)) end
        if cost > l.capacity - used and cost <= l.capacity then
          h.retry_at = max(h.retry_at, min(r.algorithm.retry_at(r, longer, cost, now), ends_at))
        end
      end
    end
  end
  return held
end
