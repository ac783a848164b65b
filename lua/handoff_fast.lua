-- handoff_fast.lua: the head of the script that decides under a placement, as
-- fast.lua is of the other: one take of one charge under one fixed window, whose
-- count is live, with a claim or without. It reads no clock: a claim matters only when
-- the count has expired, because a live count was placed when it was created.
--
-- It returns from the script, or falls through to the parts that follow. Uses
-- window_code, read_digits of digits.lua.

if #ARGV == 1 and #ARGV[1] == BOUNDED_BYTES then -- no arrival
  local _, now, _, _, _, cost, _, kind, window, quota = unpack('>I1I6I4I1I1I7I1I1I6I7', ARGV[1])
  local state, claim = redis.pcall('GET', KEYS[1]), ''
  if not state then return {2, 1} end -- missing
  if #state == CLAIM_HERE_BYTES + SHORT_BYTES and string.byte(state) == CLAIM_HERE then
    claim, state = string.sub(state, 1, CLAIM_HERE_BYTES), string.sub(state, CLAIM_HERE_BYTES + 1)
  end
  local code = #state == DIGITS and window_code(window)
  if code and kind == ALIGNED_WINDOW then code = code + ALIGNED_CODE end
  if code then
    local reset_at, used = read_digits(state, code)
    if reset_at and reset_at > now then
      if cost > quota - used then
        return {0, used, reset_at, cost > quota and -1 or reset_at, 0, 0, 0, 0}
      end
      if used + cost < DIGITS_COUNT then
        if cost > 0 then redis.call('INCRBY', KEYS[1], cost) end
        return {1, used + cost, reset_at, 0, 0, 0, reset_at, 0}
      end
    end
  elseif #state == SHORT_BYTES then
    local shape, reset_at, used = unpack(SHORT_FORM, state)
    if shape == SHORT_WINDOW * kind + window and reset_at > now then
      if cost > quota - used then
        return {0, used, reset_at, cost > quota and -1 or reset_at, 0, 0, 0, 0}
      end
      if used + cost < SHORT_COUNT then
        if cost > 0 then
          used = used + cost
          redis.call('SET', KEYS[1], claim .. pack(SHORT_FORM, shape, reset_at, used), 'KEEPTTL')
        end
        return {1, used, reset_at, 0, 0, 0, reset_at, 0}
      end
    end
  end
end
