//go:build !race

package redisbackend

const aloneAllocs, sharedAllocs = 11, 0.5
