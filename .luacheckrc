std = "lua51" -- what Redis embeds
read_globals = { "redis", "KEYS", "ARGV", "struct", "bit", "cjson", "cmsgpack" }
max_line_length = false -- header blocks quote whole layouts
ignore = { "211/SHORT_COUNT", "211/DIGITS_FORM", "211/DIGITS_COUNT" } -- the script that releases writes no state in the short forms
