-- sync.lua: a root of local/synced, which agrees on counters with all processes.
--
-- KEYS[1]  process   the number of its last call
-- KEYS[i]  counter   from 2 on: the counters of the call
-- ARGV[1]  header    '>Bdd': mode, number, now in ms; then for each limit of the counters
--                    '>Bd': kind, and span in ms: the window, or the time between two units
-- ARGV[2]  entries   for each counter '>Hddd': index of its limit in the header, units, x,
--                    said
-- Returns  one string: 'o' and the counters, or 'u' if an ADD does not follow the process's
--          last call, and nothing was done.
--
-- A root knows no policies: each call contains the kind and span of its limits. So processes
-- that have another quota for a while, or for a key, add to the same counter.
--
-- A counter is '>dd'. For a bucket these are the instant at which it is empty, so that time
-- alone drains it, and the units ever added; for a window, its index since the epoch, and its
-- units.
--
-- An ADD adds units: a window's to the window x. Its number makes a call that is sent twice
-- count once, and shows whether this server still knows earlier calls: a process sends the
-- next number after a reply to the last, so a server that has not seen the last number has
-- lost its memory, or was restored from an older copy. Number 1 begins a process, and follows
-- no call. A bucket's instant becomes at least x, which the process knows: its units may have
-- come when the bucket was empty. A counter that was evicted begins at said, which this server
-- last replied to the process: a bucket's instant, or a window's units. A counter of a new
-- length continues another: said is negative, and a window has at least -said units. A STATE,
-- for a process that this server does not know, raises counters to the values that the process
-- knows: the instant x, or the units of the window x.

local ADD, STATE = 1, 2
local WINDOW = 2 -- a bucket is 1
-- The last second of the year 9999. A debt may take longer, and Redis would fail.
local LAST_INSTANT = 253402300799000 -- ms
local MARGIN = 10000 -- ms that a counter outlives its last unit
-- A silent process is remembered for many times the longest Sync: otherwise an ADD that is sent
-- again would count twice, and each ADD would find its process forgotten.
local PROCESS = 3600000 -- ms

local call, unpack, pack = redis.call, struct.unpack, struct.pack
local header, entries = ARGV[1], ARGV[2]
local mode, number, now, at = unpack('>Bdd', header)

local kinds, spans = {}, {}
while at <= #header do
    local n = #kinds + 1
    kinds[n], spans[n], at = unpack('>Bd', header, at)
end

local last = tonumber(call('GET', KEYS[1]))
if mode == ADD and (last or 0) < number - 1 then
    return 'u'
end
local new = mode == STATE or not last or number > last
if new then
    call('SET', KEYS[1], string.format('%.0f', number), 'PX', PROCESS)
end

local reply, next = {'o'}, 1
for i = 2, #KEYS do
    local limit, units, x, said
    limit, units, x, said, next = unpack('>Hddd', entries, next)
    local state = call('GET', KEYS[i])
    local a, b
    local isWindow = kinds[limit + 1] == WINDOW
    if state and #state == 16 then
        a, b = unpack('>dd', state)
    elseif isWindow then
        a, b = said ~= 0 and x or 0, math.abs(said)
    else
        a, b = math.max(said, 0), 0
    end
    local life
    if not new and state then -- a repeated call, which was counted
        life = nil
    elseif isWindow then
        if x >= a and (units ~= 0 or said < 0 or x > a or not state) then
            b = math.max(x > a and 0 or b, -said)
            b = mode == STATE and math.max(b, units) or math.max(b + units, 0)
            a, life = x, (x + 1) * spans[limit + 1] - now
        end
    elseif mode == STATE or units ~= 0 or said < 0 or a > 0 and not state then
        a, b = math.min(math.max(a + units * spans[limit + 1], x), LAST_INSTANT), b + units
        life = a - now
    end
    if life then
        state = pack('>dd', a, b)
        call('SET', KEYS[i], state, 'PX', string.format('%.0f', math.max(life, 0) + MARGIN))
    elseif not state then
        state = pack('>dd', a, b)
    end
    reply[#reply + 1] = state
end
return table.concat(reply)
