-- prelude.lua: what every part may use: operations, the kinds of limits, the short forms of a state,
-- the largest numbers, the sizes of claims. Package algorithm names the same constants;
-- its test compares them.

local spread = unpack -- a table's values, which unpack hides
local unpack, pack = struct.unpack, struct.pack
local max, min = math.max, math.min

-- The kinds of limits and records; kinds.lua has what they do.
local FIXED_WINDOW, ALIGNED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, TOKEN_BUCKET, LEAKY_BUCKET = 1, 2, 3, 4, 5, 6

-- The operation of a decision, as decide.lua packs it: TAKE or SETTLE, and HAS_LOG more
-- if a limit is a sliding log.
local TAKE, SETTLE, HAS_LOG = 0, 1, 2

-- One window alone takes so many bytes, if its length and count are below these.
local SHORT_BYTES, SHORT_WINDOW, SHORT_COUNT, SHORT_FORM = 12, 268435456, 65536, '>I4I6I2'

-- One window alone that has a code, as digits: 3 of the code (ALIGNED_CODE more if the
-- window is aligned), 12 of the reset time, as ms since 2025, 4 of the count.
local DIGITS, DIGITS_FORM, DIGITS_COUNT = 19, '%.0f%012.0f%04.0f', 10000
local DIGITS_FRONT, DIGITS_SPAN, DIGITS_EPOCH, ALIGNED_CODE = 15, 1000000000000, 1735689600000, 400

-- A take of one charge under one fixed window shorter than SHORT_WINDOW has 27 bytes more
-- than other takes, and so a length of its own. alone.lua and fast.lua compare them with a
-- state in digits: the window is open if the state is above the first 19, and below the
-- next 4; and the take fits if the last 4 digits, what is used, are at most the last 4
-- bytes: NO_ROOM unless it is of one unit, MOST_ROOM if digits may not hold what the quota
-- allows. Here are the bytes of all, the place of the 27, their format, and the format of
-- times, cost, quota and them.
local BOUNDED_BYTES, BOUNDS_AT, BOUNDS, BOUNDED = 69, 43, 'c19c4c4', '>I1xxxxxxxxxxxxI7xxxxxxxxI7xxxxxxxc19c4c4'
local NO_ROOM, MOST_ROOM = '    ', '9998'

-- The largest instant stored, in the year 9999; what would exceed it stays there.
local MAX_INSTANT = 253402300799000

-- The largest count stored, 2^53; what would exceed it stays there. Whole numbers
-- below it are exact in a double.
local MAX_COUNT = 9007199254740992

-- An entry of a log: instant, cost. The most entries, of all logs of a state, that are
-- kept in rows; and what is read of a key that may have more, which holds as many and
-- some records.
local ENTRY, ENTRY_BYTES, MAX_IN_ROWS = '>I6I4', 10, 200
local FRONT_BYTES, FRONT_END = 2560, '2559'

-- The first byte of a claim in front of a state, of a count that is here or has
-- left, and the claim's size.
local CLAIM_HERE, CLAIM_LEFT, CLAIM_HERE_BYTES, CLAIM_LEFT_BYTES = 8, 9, 13, 25
