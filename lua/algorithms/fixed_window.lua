-- fixed_window.lua: as algorithm/fixed_window.go has it. A record is a count and
-- the window's reset time, which is set when the window opens and never again.
--
-- Provides fixed_window, whose windows open at the first charge, and
-- aligned_window, whose windows open on multiples of their length. Uses
-- add_count, add_instant of numbers.lua.

local function fixed_windows(aligned)
  local FORM = '>I1I6I6I7' -- kind, window; reset at, used
  return {
    family = 'fixed-window',
    has_short_form = true,
    code = aligned and ALIGNED_CODE or 0, -- what it adds to a window's

    new = function(self, kind, window) return {algorithm = self, kind = kind, window = window, ends_at = nil, at = 0, count = 0} end,
    read = function(self, state, place)
      local kind, window, at, count, after = unpack(FORM, state, place)
      return {algorithm = self, kind = kind, window = window, ends_at = nil, at = at, count = count}, after
    end,
    write = function(r) return pack(FORM, r.kind, r.window, r.at, r.count) end,

    used = function(r, _, now)
      if now >= r.at then return 0 end
      return r.count
    end,
    reset_at = function(r, now) return max(r.at, now) end,
    retry_at = function(r) return r.at end,
    charge = function(r, _, cost, now)
      if now < r.at then
        r.count = add_count(r.count, cost)
      else
        local opened = now
        if aligned then opened = now - now % r.window end
        r.at, r.count = add_instant(opened, r.window), cost
      end
      return r.at, 0, 0
    end,
    give_back = function(r, l, c)
      if l.mark ~= r.at then return false end
      r.count = max(r.count - (c.charged - c.cost), 0)
      return true
    end,

    adopt = function(r, l)
      if r.window < l.window then r.at, r.count = 0, 0 else r.at = max(r.at - (r.window - l.window), 0) end
      r.window = l.window
    end,
    join = function(r, _, _, cost) r.count = add_count(r.count, cost) end,
    give_back_joined = function(r, c)
      if r.at - r.window <= c.taken_at and c.taken_at < r.at then
        r.count = max(r.count - (c.charged - c.cost), 0)
      end
    end,
  }
end

local function fixed_window() return fixed_windows(false) end

local function aligned_window() return fixed_windows(true) end
