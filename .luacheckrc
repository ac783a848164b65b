std = "lua51" -- what Redis embeds
read_globals = { "redis", "KEYS", "ARGV", "struct", "bit", "cjson", "cmsgpack" }
max_line_length = false -- header blocks quote whole layouts, and what is composed gets long

-- Scripts are composed of sections, and each section is the same in all of them.
ignore = {
  -- functions, arguments and fields that not every script needs
  "211/spread", "211/states", "241/changed", "211/ceil_div", "211/ceil_level", "211/take_from_entry", "211/room", "211/size_%d+",
  "211/capacity%d+", "211/quota%d+", "211/renews_%d+", "211/closes%d+", "211/fraction_of_mark%d+", "231/full%d+", "231/full_part%d+",
  -- fields that are unpacked with those behind them, and what the last limit's section leaves for no other
  "311/rate%d+", "311/most%d+", "311/elapsed%d+", "311/base",
  -- what a charge that is only checked does not write
  "231/claim_%d+", "231/charged_at%d+", "231/gaps.*", "231/most%d+",
  -- a log has nothing to bring up to now before it is settled
  "542",
  -- a condition that a section gives stands in "not (...)"
  "581",
}
