-- prelude.lua: the names and constants that all parts use. Package algorithm has
-- the same constants; its test compares them.

local unpack, pack, max, min = struct.unpack, struct.pack, math.max, math.min

-- The largest values stored; what would exceed them stays there. Numbers are
-- doubles: integers are exact to MAX_COUNT, 2^53.
local MAX_COUNT, MAX_LOG_COST, MAX_INSTANT = 9007199254740992, 4294967295, 253402300799000

-- The short form of a state: so many bytes, for windows and counts below these.
local SHORT_BYTES, SHORT_WINDOW, SHORT_COUNT, SHORT_FORM = 12, 268435456, 65536, '>I4I6I2'

-- What a record, and a limit in the arguments, begin with: kind and window.
local HEAD_FORM = '>I1I6'

-- The most records of one state.
local MAX_RECORDS = 32

-- The kind of a fixed window, for fast.lua; kinds.lua has them all.
local FIXED_WINDOW = 1

-- The first byte of a claim in front of a state, of a count that is here or has
-- left, and the claim's size.
local CLAIM_HERE, CLAIM_LEFT, CLAIM_HERE_BYTES, CLAIM_LEFT_BYTES = 8, 9, 13, 25
