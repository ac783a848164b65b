package rls

import "sync"

// A localCache has the counts that are over their limit, until their windows end, like
// envoyproxy/ratelimit with LOCAL_CACHE_SIZE_IN_BYTES. To be compatible, such a count is over
// without a question to the store, and is not charged.
type localCache struct {
	room int // for counts

	mu     sync.Mutex
	ends   map[count]int64 // of their windows, in ms since the epoch
	oldest []count         // the order in which they leave
	stats  CacheStats
}

// count names a count.
type count struct{ policy, key string }

// CacheStats are the numbers of the local cache.
type CacheStats struct{ Hits, Misses, Counts, Evicted int64 }

// A count takes about bytesPerCount. The cache of envoyproxy/ratelimit has at least minCacheBytes.
const (
	bytesPerCount = 256
	minCacheBytes = 512 << 10
)

// newLocalCache returns a cache of a size in bytes, or nil if that is 0.
func newLocalCache(bytes int64) *localCache {
	if bytes <= 0 {
		return nil
	}
	return &localCache{room: int(max(bytes, minCacheBytes) / bytesPerCount), ends: make(map[count]int64)}
}

// contains reports whether a count is over its limit at now.
func (l *localCache) contains(c count, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ends[c] > now {
		l.stats.Hits++
		return true
	}
	l.stats.Misses++
	return false
}

// add remembers that a count is over its limit until end. Without room, the oldest leaves.
func (l *localCache) add(c count, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, found := l.ends[c]; !found {
		l.oldest = append(l.oldest, c)
	}
	l.ends[c] = end
	if len(l.ends) > l.room {
		delete(l.ends, l.oldest[0])
		l.oldest = l.oldest[1:]
		l.stats.Evicted++
	}
}

// numbers returns the stats of l, which may be nil.
func (l *localCache) numbers() CacheStats {
	if l == nil {
		return CacheStats{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Counts = int64(len(l.ends))
	return s
}
