-- decide.lua: the frame of the scripts that make decisions, of which package lua composes
-- one for each shape: an operation, and the kinds of the limits of each charge. The
-- sections of a limit's algorithm go in here, with the limit's number in the place of $ and the
-- charge's in the place of @. Words in capitals that are no locals are composed.
--
-- KEYS     state     of a (policy, key), for each decision and each of its charges
-- ARGV[i]  decision  made with the next keys; numbers big-endian and unsigned:
--            1 how many times it is made, each time with other keys
--            6 now, Unix ms
--            4 margin, ms that a state outlives its last window
--            1 whether counts move between backends: then none begins here by itself
--            for each charge
--              7 cost, which its mode may make another; to settle: 7 cost that was charged,
--              7 real cost, both 2^54 to renew, 4 generation
--              for each limit
--                1 kind, 6 window ms, 7 quota or, of a calendar's window, when it ends, 7 capacity
--                to settle: 6 mark, 7 fraction of the mark
--            of one fixed window and nothing else, 27 more: see single_window.lua
-- Returns  the decisions' replies, one after the other, in one string:
--            0 if refused, or not held any more, 1 if allowed; for each charge in mode AtMost 2 length, 7 cost that
--            was charged; and for each charge
--              a claim that it is here and the trace of a reset, if it has them;
--              2 length and so many bytes, the rest of its state now; of a sliding
--                log, 1 kind, 6 window, 7 sum, 6 newest entry, and when 6 one unit and
--                6 the cost fit, 0 if they do now
--          or, from single_window.lua, 19 digits, which are the state before: allowed
--          or 2: nothing was done, because something is not as simple as it mostly is.
--            The caller reads the states, decides, and stores what they become: swap.lua
--
-- All limits are looked at, and only then charged. The expiry is set when a reset time
-- moves forward, and only then: relative to the caller's now, so that no two clocks are
-- compared. It only removes what is dead; whether a state is, its reset times say.

--@ begin
local call, try, spread = redis.call, redis.pcall, unpack
local sub, byte, find, format = string.sub, string.byte, string.find, string.format
local unpack, pack, max, min = struct.unpack, struct.pack, math.max, math.min
local MAX_INSTANT, MAX_COUNT = 253402300799000, 9007199254740992
local CLAIM_HERE = 8 -- a lower byte begins a record
local keys = KEYS

-- What is in front of a state, a claim and the trace of a reset, and the state, false if
-- that is all.
local function cut(stored)
  local CLAIM_BYTES, RESET, RESET_BYTES = 13, 11, 11
  local bytes = byte(stored) == CLAIM_HERE and CLAIM_BYTES or 0
  if byte(stored, bytes + 1) == RESET then bytes = bytes + RESET_BYTES end
  if #stored < bytes then bytes = 0 end -- it was cut short: to the caller
  return sub(stored, 1, bytes), #stored ~= bytes and sub(stored, bytes + 1)
end

--@ settles
-- Whether a front has the trace of a reset, and of another generation.
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
      if not body@ or changed[keys[first + INDEX]] then -- what is no string is nothing to MGET
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
      if claim@ ~= '' and (GIVES) and is_other(claim@, generation@) then break end -- nothing is given back

--@ before
      local before@ = COUNTS_UNTIL
      if is_placed == 1 and before@ <= now then break end -- it counts nothing here

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
      elseif body@ and amount@ > 0 then -- no reset time moves forward by it: the key keeps its expiry

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
