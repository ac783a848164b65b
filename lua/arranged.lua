-- arranged.lua: what take.lua and settle.lua share. They make the decisions about
-- states whose records match the policy's limits, in their order, and where no
-- product is too large for a double: the common case by far, in one pass over packed
-- bytes, without a table for a record or a limit. They leave any other decision to
-- general.lua, with nothing done.
--
-- Provides states, writes, drain_time, SHAPE_WINDOW, HEAD_BYTES, and the formats and
-- sizes of limits and records: LIMIT, LIMIT_BYTES, SETTLED_LIMIT, SETTLED_LIMIT_BYTES,
-- FIXED, FIXED_BYTES, SLIDING, SLIDING_BYTES, LOG, LOG_BYTES, BUCKET, BUCKET_BYTES; and
-- read_lone, lone_state. Uses window_code, digits_of, read_digits of digits.lua.

-- What the keys of a decision's charges have stored, false if nothing, and are to store.
-- Of what may be a long log, it is the first FRONT_BYTES.
local states, writes = {nil, nil, nil}, {nil, nil, nil}

-- A shape is a kind and a window in one number: kind * SHAPE_WINDOW + window.
local SHAPE_WINDOW = 281474976710656

-- A decision begins with so many bytes: times, now, margin, operation, number of charges.
local HEAD_BYTES = 13

-- A limit: shape, quota, capacity; to settle also mark, fraction.
local LIMIT, LIMIT_BYTES, SETTLED_LIMIT, SETTLED_LIMIT_BYTES = '>I7I7I7', 21, '>I7I7I7I6I7', 34

-- Records: shape; fixed windows: reset at, used; sliding window: start, current,
-- previous; sliding log: number of entries, their sum, and behind them the entries;
-- buckets: drained at, fraction, quota, charged at, capacity.
local FIXED, FIXED_BYTES = '>I7I6I7', 20
local SLIDING, SLIDING_BYTES = '>I7I6I7I7', 27
local LOG, LOG_BYTES = '>I7I4I7', 18
local BUCKET, BUCKET_BYTES = '>I7I6I7I7I6I7', 40

-- The ms in which units of a bucket drain, and the rest in 1/quota of one; nil if that
-- is too large.
local function drain_time(units, window, quota)
  local product = units * window
  if product >= MAX_COUNT then return nil end
  local rest = product % quota
  return (product - rest) / quota, rest
end

-- The code of a window that alone can be stored as digits, nil if it has none.
local function lone_code_of(kind, window)
  local code = window_code(window)
  return code and kind == ALIGNED_WINDOW and code + ALIGNED_CODE or code
end

-- The reset time and the count of a window alone, nil if state is not one of that
-- kind and length.
local function read_lone(state, kind, window)
  if #state == DIGITS then return read_digits(state, lone_code_of(kind, window)) end
  local shape, at, used = unpack(SHORT_FORM, state)
  if shape ~= kind * SHORT_WINDOW + window then return nil end
  return at, used
end

-- The state that is a window alone.
local function lone_state(kind, window, at, used)
  local digits = digits_of(lone_code_of(kind, window), at, used)
  if digits then return digits end
  if window < SHORT_WINDOW and used < SHORT_COUNT then return pack(SHORT_FORM, kind * SHORT_WINDOW + window, at, used) end
  return pack(FIXED, kind * SHAPE_WINDOW + window, at, used)
end
