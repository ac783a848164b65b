package memcachedbackend

import "testing"

func FuzzItem(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x01 a draw."))
	f.Add([]byte("\x01 a draw.\x04core\xff\xff\xff\xff\xff\xff\x0c\x10\x00\xea\x60\x01\xba\x00\x00\x00\x00\x00\x03"))
	f.Fuzz(func(t *testing.T, value []byte) {
		it, err := newItem("", value, 5000, spillAt)
		if err != nil || value == nil {
			return
		}
		written, _ := it.encode()
		again, err := newItem("", written, 5000, spillAt)
		if err != nil || len(again.counts) != len(it.counts) {
			t.Errorf("%x, of %d counts, is written as %x, which is read as %+v, %v", value, len(it.counts), written, again, err)
		}
	})
}

// TestFuzzSeedIsAnItem keeps the fuzzer's seed from becoming noise.
func TestFuzzSeedIsAnItem(t *testing.T) {
	it, err := newItem("", []byte("\x01 a draw.\x04core\xff\xff\xff\xff\xff\xff\x0c\x10\x00\xea\x60\x01\xba\x00\x00\x00\x00\x00\x03"), 5000, spillAt)
	if err != nil || len(it.counts) != 1 || string(it.counts[0].name) != "core" {
		t.Errorf("got %+v, %v", it, err)
	}
}

func TestExpiration(t *testing.T) {
	const (
		now = 1_800_000_000_000 // 2027
		day = 24 * 60 * 60
	)
	for _, test := range []struct {
		life int64 // ms
		want int32
	}{
		{1, 3},
		{(30*day - 2) * 1000, 30 * day},
		{(30*day-2)*1000 + 1, 1_800_000_000 + 31*day + 1},
		{366 * day * 1000, 1_800_000_000 + 367*day + 2},
		{20 * 366 * day * 1000, 0},
	} {
		if got := expiration(test.life, now); got != test.want {
			t.Errorf("%d ms: got %d, want %d", test.life, got, test.want)
		}
	}
}
