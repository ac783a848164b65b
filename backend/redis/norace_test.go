//go:build !race

package redisbackend

const inlineAllocs, sharedAllocs = 6, 0.5
