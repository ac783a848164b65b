-- prelude.lua: what even fast.lua uses, and nothing more: the short forms of a
-- state. Package algorithm names the same constants; its test compares them.

local unpack, pack = struct.unpack, struct.pack

-- One window alone takes so many bytes, if its length and count are below these.
local SHORT_BYTES, SHORT_WINDOW, SHORT_COUNT, SHORT_FORM = 12, 268435456, 65536, '>I4I6I2'

-- One window alone that has a code, as digits: 3 of the code (ALIGNED_CODE more if the
-- window is aligned), 12 of the reset time, as ms since 2025, 4 of the count.
local DIGITS, DIGITS_FORM, DIGITS_COUNT = 19, '%.0f%012.0f%04.0f', 1e4
local DIGITS_FRONT, DIGITS_SPAN, DIGITS_EPOCH, ALIGNED_CODE = 15, 1e12, 1735689600000, 400

-- The largest instant stored, in the year 9999; what would exceed it stays there.
local MAX_INSTANT = 253402300799000
