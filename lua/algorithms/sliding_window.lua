-- sliding_window.lua: as algorithm/sliding_window.go has it. A record is the start
-- of the current window, its count, and the count of the window before.
--
-- Provides sliding_window. Uses add_count, add_instant, mul_div of numbers.lua.

local function sliding_window()
  local FORM = '>I1I6I6I7I7' -- kind, window; start, current, previous

  -- The record at now, after windows that ended have moved on.
  local function moved(r, now)
    if now < r.at + r.window then return r.at, max(now - r.at, 0), r.count, r.previous end
    local start = now - (now - r.at) % r.window
    if start == r.at + r.window then return start, now - start, 0, r.count end
    return start, now - start, 0, 0
  end

  local function charge(r, cost, now)
    local start, _, current, previous = moved(r, now)
    r.at, r.count, r.previous = start, add_count(current, cost), previous
    return start, 0, 0
  end

  local function used(r, _, now)
    local _, elapsed, current, previous = moved(r, now)
    local weighted, rest = mul_div(previous, r.window - elapsed, r.window)
    if rest > 0 then weighted = weighted + 1 end
    return add_count(weighted, current)
  end

  return {
    family = 'sliding-window',

    new = function(self, kind, window) return {algorithm = self, kind = kind, window = window, ends_at = nil, at = 0, count = 0, previous = 0} end,
    read = function(self, state, place)
      local kind, window, at, count, previous, after = unpack(FORM, state, place)
      return {algorithm = self, kind = kind, window = window, ends_at = nil, at = at, count = count, previous = previous}, after
    end,
    write = function(r) return pack(FORM, r.kind, r.window, r.at, r.count, r.previous) end,

    used = used,
    reset_at = function(r, now)
      local start, _, current, previous = moved(r, now)
      if current > 0 then return add_instant(start, 2 * r.window) end
      if previous > 0 then return add_instant(start, r.window) end
      return now
    end,
    retry_at = function(r, l, cost, now)
      local start, _, current, previous = moved(r, now)
      local room = l.capacity - cost - current
      if room < 0 then
        start, room, previous = add_instant(start, r.window), l.capacity - cost, current
      end
      local inside = mul_div(room, r.window, previous)
      return add_instant(start, r.window - min(inside, r.window))
    end,
    charge = function(r, _, cost, now) return charge(r, cost, now) end,
    give_back = function(r, l, c)
      if l.mark == r.at then
        r.count = max(r.count - (c.charged - c.cost), 0)
      elseif l.mark == r.at - r.window then
        r.previous = max(r.previous - (c.charged - c.cost), 0)
      else
        return false
      end
      return true
    end,

    adopt = function(r, l)
      if r.window < l.window then r.at, r.count, r.previous = 0, 0, 0 end
      r.window = l.window
    end,
    join = function(r, _, _, cost, now) charge(r, cost, now) end,
    give_back_joined = function(r, c)
      local amount = c.charged - c.cost
      if c.taken_at >= r.at and c.taken_at < r.at + r.window then
        r.count = max(r.count - amount, 0)
      elseif c.taken_at >= r.at - r.window and c.taken_at < r.at then
        r.previous = max(r.previous - amount, 0)
      end
    end,
  }
end
