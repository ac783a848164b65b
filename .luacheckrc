std = "lua51" -- what Redis embeds
read_globals = { "redis", "KEYS", "ARGV", "struct", "bit", "cjson", "cmsgpack" }
max_line_length = false -- header blocks quote whole layouts
ignore = { "211/spread" } -- of prelude.lua, which not every script uses whole
