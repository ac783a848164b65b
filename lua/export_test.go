package lua

// Joined has the scripts as their parts have them, by the parts that they end in.
var Joined = map[string]string{"plain.lua": decide, "handoff.lua": decideAt, "release.lua": release, "sync.lua": syncs}
