-- sliding_log.lua: as algorithm/sliding_log.go has it. A record is the sum of the
-- log's entries and the log, a string, oldest entry first.
--
-- Provides sliding_log. Uses max, min, MAX_COUNT, MAX_LOG_COST.

local function sliding_log()
  local FORM = '>I1I6I4I7' -- kind, window; number of entries, their sum
  local ENTRY, ENTRY_BYTES = '>I6I4', 10 -- instant, cost

  return {
    family = 'sliding-log',

    new = function(self, kind, window) return {algorithm = self, kind = kind, window = window, count = 0, log = ''} end,
    read = function(self, state, place)
      local kind, window, entries, count, first = unpack(FORM, state, place)
      local after = first + ENTRY_BYTES * entries
      return {algorithm = self, kind = kind, window = window, count = count, log = string.sub(state, first, after - 1)}, after
    end,
    write = function(r) return pack(FORM, r.kind, r.window, #r.log / ENTRY_BYTES, r.count) .. r.log end,

    -- Drops entries that no longer count, before anything else is asked.
    adopt = function(r, l, now)
      local place, dead = 1, 0
      while place <= #r.log do
        local at, cost = unpack(ENTRY, r.log, place)
        if at + l.window > now then break end
        place, dead = place + ENTRY_BYTES, dead + cost
      end
      if place > 1 then r.log, r.count = string.sub(r.log, place), r.count - dead end
    end,

    used = function(r) return min(r.count, MAX_COUNT) end,
    reset_at = function(r, now)
      if r.log == '' then return now end
      local last = unpack(ENTRY, r.log, #r.log - ENTRY_BYTES + 1)
      return max(last + r.window, now)
    end,
    retry_at = function(r, l, cost, now)
      local excess = r.count + cost - l.capacity
      for place = 1, #r.log, ENTRY_BYTES do
        local at, freed = unpack(ENTRY, r.log, place)
        excess = excess - freed
        if excess <= 0 then return at + r.window end
      end
      return now
    end,
    charge = function(r, _, cost, now)
      cost = min(cost, MAX_LOG_COST)
      local last, before = 0, 0
      if r.log ~= '' then last, before = unpack(ENTRY, r.log, #r.log - ENTRY_BYTES + 1) end
      if r.log == '' or last < now then
        r.log, r.count = r.log .. pack(ENTRY, now, cost), r.count + cost
        return now, 0, 0
      end
      -- Time that stepped back logs at the last instant: entries stay in order.
      local after = min(before + cost, MAX_LOG_COST)
      r.log = string.sub(r.log, 1, -ENTRY_BYTES - 1) .. pack(ENTRY, last, after)
      r.count = r.count + after - before
      return last, 0, 0
    end,
    give_back = function(r, _, mark, _, amount)
      -- From the newest: what is given back was mostly charged just now.
      for place = #r.log - ENTRY_BYTES + 1, 1, -ENTRY_BYTES do
        local at, cost = unpack(ENTRY, r.log, place)
        if at < mark then return end
        if at == mark then
          amount = min(amount, cost)
          local kept = ''
          if cost > amount then kept = pack(ENTRY, at, cost - amount) end
          r.log = string.sub(r.log, 1, place - 1) .. kept .. string.sub(r.log, place + ENTRY_BYTES)
          r.count = r.count - amount
          return
        end
      end
    end,
  }
end
