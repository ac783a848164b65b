-- sync.lua: a root of local/synced, which agrees on counters with all processes.
--
-- KEYS[1]  key       of an addition, the number of the process's last one; of a claim, how many
--                    processes claimed the part; of a resend, the counters resent lately
-- ARGV[1]  header    '>dd': number, now in ms; then for each limit of the counters '>Bdddd': kind,
--                    span in ms (the window, or the time between two units), length of the
--                    window in ms, how far in the future a bucket's instant may be, in ms, and
--                    when the counters were reset last, as far as the process knows, or 0
-- ARGV[2]  entries   for each counter '>c12Hddd': name, index of its limit in the header, units,
--                    x, bound
-- ARGV[3]  prefix    of the counters' keys
-- Returns  one string: 'o', the counters and, for each recent reset, '>c12d': name, its time; or
--          that nothing was done: 'u', an addition does not follow the process's last one; 'b',
--          enough was resent for now; 's', enough processes have claimed the part.
--
-- A root knows no policies: each call contains the kind and span of its limits. So processes
-- that have another quota for a while, or for a key, add to the same counter.
--
-- A counter is '>dd'. For a bucket these are the instant at which it is empty, so that time
-- alone drains it, and the units ever added; for a window, its index since the epoch, and its
-- units. After a reset there is its time, too, for as long as older units could count. An entry
-- with a later reset begins the counter again; one with an earlier reset does nothing, and the
-- reply is the counter's reset and minus infinity.
--
-- An entry adds units: a window's to the window x. A bucket's instant becomes at least x, which
-- the process knows: its units may have come when the bucket was empty. Units raise it to the
-- header's bound at most, so that a debt ends, and never lower it. The entry's bound is the last
-- reply of this server to the process: an instant, or a window's units. A counter that was evicted
-- begins there. If the bound is negative, a counter that exists is raised to -bound, too: the
-- server may have lost its memory since the reply, or the counter continues one of another length.
--
-- Number 1 begins a process, and the next number follows a reply to the last. So an addition that
-- is sent twice counts once, and a server that has not seen the last number has lost its memory,
-- or was restored from an older copy. Number 0 is a resend, entries without units, or without
-- entries a claim: a few processes resend each part of the counters.

local WINDOW = 2 -- a bucket is 1
-- The last second of the year 9999. A debt may take longer, and Redis would fail.
local LAST_INSTANT = 253402300799000 -- ms
local MARGIN = 10000 -- ms that a counter outlives its last unit
-- A silent process is remembered for many times the longest Sync: otherwise an addition that is
-- sent again would count twice, and each addition would find its process forgotten.
local PROCESS = 3600000 -- ms
local COPIES, CLAIM = 8, 600000 -- processes that resend a part, and ms that they are remembered
-- Some 4 µs for each resent counter are a quarter of the time.
local RESENT, RESENDING = 6250, 100 -- counters, in so many ms
local RECENT, REMEMBERED = 50, 150000 -- resets that are returned, for so many ms

local call, unpack, pack, spread = redis.call, struct.unpack, struct.pack, unpack
local max, min = math.max, math.min
local header, entries, prefix = ARGV[1], ARGV[2], ARGV[3]
local number, now, place = unpack('>dd', header)

local new = true
if number > 0 then
    local last = tonumber(call('GET', KEYS[1]) or 0)
    if last < number - 1 then
        return 'u'
    end
    new = number > last
    if new then
        call('SET', KEYS[1], string.format('%.0f', number), 'PX', PROCESS)
    end
elseif entries == '' then
    local copies = call('INCRBY', KEYS[1], 1)
    call('PEXPIRE', KEYS[1], CLAIM)
    return copies > COPIES and 's' or 'o'
else
    local n = #entries / 38
    local resent = call('INCRBY', KEYS[1], n)
    if resent == n then
        call('PEXPIRE', KEYS[1], RESENDING)
    end
    if resent > RESENT then
        return 'b'
    end
end

local kinds, spans, bounds, resets, suffixes = {}, {}, {}, {}, {}
while place <= #header do
    local n = #kinds + 1
    local length
    kinds[n], spans[n], length, bounds[n], resets[n], place = unpack('>Bdddd', header, place)
    suffixes[n] = string.format(kinds[n] == WINDOW and 'w%.0f' or 'b%.0f', length)
end

local keys, limits, added, xs, reached = {}, {}, {}, {}, {}
place = 1
while place <= #entries do
    local n = #keys + 1
    local name, limit
    name, limit, added[n], xs[n], reached[n], place = unpack('>c12Hddd', entries, place)
    limits[n] = limit + 1
    keys[n] = prefix .. name .. suffixes[limit + 1]
end
local resetsKey = prefix .. 'resets'
local recent = call('GET', resetsKey) or ''
if #keys == 0 then
    return 'o' .. recent
end

local states, reply, written, heard = call('MGET', spread(keys)), {'o'}, {}, ''
for i, key in ipairs(keys) do
    local units, x, bound, limit = added[i], xs[i], reached[i], limits[i]
    local state = written[key] or states[i]
    local isWindow = kinds[limit] == WINDOW
    local known = state and #state == 24 and unpack('>d', state, 17) or 0
    local reset = resets[limit]
    local over = isWindow and x * spans[limit] - 1 or now - bounds[limit] -- resets until then
    known, reset = known > over and known or 0, reset > over and reset or 0
    local a, b
    if state and #state >= 16 then
        a, b = unpack('>dd', state)
    end
    if not a or reset > known and not (isWindow and a > x) then
        if reset > known then
            heard = heard .. string.sub(entries, i * 38 - 37, i * 38 - 26) .. pack('>d', reset)
        end
        state, a, b = false, max(bound, 0), 0
        if isWindow then
            a, b = bound ~= 0 and x or 0, math.abs(bound)
        end
    end
    local life
    if not new and state or reset < known then -- a repeated call, which was counted
        life = nil
    elseif isWindow then
        if x >= a and (units ~= 0 or bound < 0 or x > a or not state) then
            b = max(max(x > a and 0 or b, -bound) + units, 0)
            a, life = x, (x + 1) * spans[limit] - now
        end
    elseif units ~= 0 or bound < 0 or not state and (a > 0 or reset > 0) then
        a, b = max(a, -bound), b + units
        local later = a + units * spans[limit]
        if units > 0 then
            later = max(a, min(later, now + bounds[limit]))
        end
        a = min(max(later, x), LAST_INSTANT)
        life = max(a, reset > 0 and reset + bounds[limit] or 0) - now
    end
    local before = state
    if life or not state then
        state = reset > 0 and pack('>ddd', a, b, reset) or pack('>dd', a, b)
    end
    if life and state ~= before then
        call('SET', key, state, 'PX', string.format('%.0f', max(life, 0) + MARGIN))
        written[key] = state
    end
    reply[#reply + 1] = reset < known and pack('>dd', known, -math.huge) or string.sub(state, 1, 16)
end
if heard ~= '' then
    recent = string.sub(heard .. recent, 1, 20 * RECENT)
    call('SET', resetsKey, recent, 'PX', REMEMBERED)
end
return table.concat(reply) .. recent
