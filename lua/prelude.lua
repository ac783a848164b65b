-- prelude.lua: what every part may use: the kinds of limits, the short form of a state,
-- the largest numbers, the sizes of claims. Package algorithm names the same constants;
-- its test compares them.

local spread = unpack -- a table's values, which unpack hides
local unpack, pack = struct.unpack, struct.pack
local max, min = math.max, math.min

-- The kinds of limits and records; kinds.lua has what they do.
local FIXED_WINDOW, ALIGNED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, TOKEN_BUCKET, LEAKY_BUCKET = 1, 2, 3, 4, 5, 6

-- One window alone takes so many bytes, if its length and count are below these.
local SHORT_BYTES, SHORT_WINDOW, SHORT_COUNT, SHORT_FORM = 12, 268435456, 65536, '>I4I6I2'

-- The largest instant stored, in the year 9999; what would exceed it stays there.
local MAX_INSTANT = 253402300799000

-- The largest count stored, 2^53; what would exceed it stays there. Whole numbers
-- below it are exact in a double.
local MAX_COUNT = 9007199254740992

-- The first byte of a claim in front of a state, of a count that is here or has
-- left, and the claim's size.
local CLAIM_HERE, CLAIM_LEFT, CLAIM_HERE_BYTES, CLAIM_LEFT_BYTES = 8, 9, 13, 25
