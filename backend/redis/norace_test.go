//go:build !race

package redisbackend

const aloneAllocs, sharedAllocs = 6, 0.5
