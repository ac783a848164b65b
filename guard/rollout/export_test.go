package rollout

// NewWithClock is New in a process with another clock.
var NewWithClock = newBackend
