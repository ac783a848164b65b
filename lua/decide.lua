-- decide.lua: the frame of the scripts that make decisions. Package lua composes a script for
-- each shape: an operation, and the kinds of the limits of each charge. It inserts the
-- sections of each limit's algorithm, and replaces $ by the limit's number, @ by the charge's,
-- and words in capitals unless they are locals.
--
-- KEYS     state     of a (policy, key), for each decision and each of its charges
-- ARGV[i]  decision  made with the next keys; numbers big-endian and unsigned:
--            1 how many times it is made, each time with other keys
--            6 now, Unix ms
--            4 margin, ms that a state outlives its last window
--            1 whether counts move between backends: then the caller begins a count
--            for each charge
--              7 cost, which mode AtMost may lower; to settle: 7 charged cost, 7 real cost,
--              4 generation, 1 whether its units in flight are renewed
--              for each limit
--                1 kind, 6 window ms, 7 quota, 7 capacity, and 6 the end of a calendar's window
--                to settle: 6 mark, 7 fraction of the mark
--            27 more if the only limit is a fixed window: see single_window.lua
-- Returns  the decisions' replies, concatenated in one string. A reply is
--            a byte: 1 if allowed, 0 if refused or no longer held
--            for each charge in mode AtMost: 2 length, 7 charged cost
--            for each charge: a claim that the count is here and the trace of a reset, if it
--              has them; 2 length and so many bytes, the rest of its state now. For a sliding
--              log these are 1 kind, 6 window, 7 sum, 6 newest entry, 6 when one unit fits, and
--              6 when the cost fits, 0 if now or never
--          or, from single_window.lua, 19 digits, which are the state before: allowed
--          or 2: undecided, nothing was done. The caller reads the states, decides, and stores
--            the new states: swap.lua
--
-- A script checks all limits before it charges any. It sets the expiry of a key only when a
-- reset time moves forward, relative to the caller's now, so that no two clocks are compared.
-- The expiry only removes dead states. The reset times say whether a state is dead.

--@ begin
local call, try, spread = redis.call, redis.pcall, unpack
local sub, byte, find, format = string.sub, string.byte, string.find, string.format
local unpack, pack, max, min = struct.unpack, struct.pack, math.max, math.min
local MAX_INSTANT, MAX_COUNT = 253402300799000, 9007199254740992
local CLAIM_HERE = 8 -- a lower byte begins a record
local keys = KEYS

-- Returns the front of a stored value, a claim and the trace of a reset, and the state, or
-- false if it has no state.
local function cut(stored)
  local CLAIM_BYTES, RESET, RESET_BYTES = 13, 11, 11
  local bytes = byte(stored) == CLAIM_HERE and CLAIM_BYTES or 0
  if byte(stored, bytes + 1) == RESET then bytes = bytes + RESET_BYTES end
  if #stored < bytes then bytes = 0 end -- truncated: the caller decides
  return sub(stored, 1, bytes), #stored ~= bytes and sub(stored, bytes + 1)
end

--@ settles
-- Reports whether a front has the trace of a reset, and of another generation.
local function is_other(front, generation)
  local RESET, RESET_BYTES = 11, 11
  local at = #front - RESET_BYTES + 1
  return at > 0 and byte(front, at) == RESET and unpack('>I4', front, at + 1) ~= generation
end

--@ states
local states, changed = STATES, {}

--@ decisions
local replies, made, first = REPLIES, 0, 1
for i = 1, #ARGV do
  local times, now, margin, is_placed, ARGUMENTS = unpack('ARGUMENT_FORM', ARGV[i])

--@ amounts
  local cost@, amount@ = max(spent@ - charged@, 0), max(charged@ - spent@, 0)

--@ decision
  for _ = 1, times do
    local reply = '\2'
    repeat

--@ locals
      local claim@, size@, FIELDS = '', '\0\0', ZEROS

--@ read
      local body@ = states[first + INDEX]
      if not body@ or changed[keys[first + INDEX]] then -- MGET returns false for other types, too
        body@ = try('GET', keys[first + INDEX])
        if type(body@) == 'table' then
          if find(body@.err, 'WRONGTYPE', 1, true) then break end
          return body@
        end
      end

--@ parse
      if body@ and (byte(body@) or CLAIM_HERE) >= CLAIM_HERE then claim@, body@ = cut(body@) end
      if body@ then
        if #body@ ~= SIZE then break end
        local STORED
        ROW = unpack('FORM', body@)
        if not (MATCHES) then break end
        size@ = 'LENGTH'
      end

--@ generation
      if claim@ ~= '' and (GIVES) and is_other(claim@, generation@) then break end -- reset since: the caller decides

--@ before
      local before@ = COUNTS_UNTIL
      if is_placed == 1 and before@ <= now then break end -- no live count here: the caller decides

--@ take at most
      local cost@ = min(asked@, max(LEFT, 1))

--@ take
      if FITS then

--@ take charge
        if cost@ > 0 then

--@ refuse
        reply = '\1'
      else
        reply = '\0'
      end

--@ settle charge
      if cost@ > 0 then

--@ settle give back
      elseif body@ and amount@ > 0 then -- moves no reset time forward: the key keeps its expiry

--@ settle write
      if CHANGES then
        if cost@ > 0 then

--@ write
          local ends = COUNTS_UNTIL
          body@, size@ = pack('FORM', VALUES), 'LENGTH'

--@ store
          if ends <= before@ then
            call('SET', keys[first + INDEX], claim@ .. body@, 'KEEPTTL')
          else
            local life = LIVES + margin
            if claim@ ~= '' then life = max(life, call('PTTL', keys[first + INDEX])) end
            call('SET', keys[first + INDEX], claim@ .. body@, 'PX', format('%d', life)) -- Redis formats numbers slowly
          end

--@ changed
          changed[keys[first + INDEX]] = true

--@ end
      reply = reply .. REPLY
    until true
    made, first = made + 1, first + CHARGES
    replies[made] = reply
  end
end
return table.concat(replies)
