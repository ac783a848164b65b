//go:build !race

package redisbackend

const aloneAllocs, sharedAllocs = 9, 0.5
