package memcachedbackend

import (
	"bytes"
	"testing"
)

const (
	plainSeed  = "\x01 a draw.\x04core\xff\xff\xff\xff\xff\xff\x14\x01\x00\x00\x00\x00\xea\x60\x01\xba\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03"
	spreadSeed = "\x02 a draw.an epoch\xff\xff\xff\xff\xff\xff\x11core\x00twelve bytesan older\xff\xff\xff\xff\xff\xff\x14\x01\x00\x00\x00\x00\xea\x60\x01\xba\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03"
	ownSeed    = "\x03an epoch\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00\xea\x60\x01\xba\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03"
)

func FuzzItem(f *testing.F) {
	f.Add([]byte{}, 100)
	f.Add([]byte("\x01 a draw."), 100)
	f.Add([]byte(plainSeed), 100)
	f.Add([]byte(spreadSeed), 100)
	f.Add([]byte(spreadSeed), 1)
	f.Fuzz(func(t *testing.T, value []byte, spillAt int) {
		spillAt = max(spillAt, 1)
		it, err := newItem("", value, 5000, spillAt)
		if err != nil || value == nil {
			return
		}
		written, _ := it.encode()
		again, err := newItem("", written, 5000, spillAt)
		if err != nil || len(again.counts) != len(it.counts) || again.epoch != it.epoch || again.bytes != it.bytes || writeIDOf(written) != it.writeID {
			t.Errorf("%x, of %d counts, is written as %x, which is read as %+v, %v", value, len(it.counts), written, again, err)
		}
	})
}

func FuzzOwnItem(f *testing.F) {
	f.Add([]byte(ownSeed))
	it, err := newItem("", []byte(spreadSeed), 5000, 100)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		c, err := it.newCount("core", value)
		if err != nil || c == nil {
			return
		}
		if written := it.encodeOwn(c); !bytes.Equal(written, value) {
			t.Errorf("%x is written as %x", value, written)
		}
	})
}

// TestFuzzSeedsAreItems keeps the fuzzers' seeds from becoming noise.
func TestFuzzSeedsAreItems(t *testing.T) {
	for _, seed := range []string{plainSeed, spreadSeed} {
		it, err := newItem("", []byte(seed), 5000, spillAt)
		if err != nil || len(it.counts) != 1 || string(it.counts[0].name[:4]) != "core" {
			t.Fatalf("%q: got %+v, %v", seed, it, err)
		}
		if it.epoch == 0 {
			continue
		}
		if c, err := it.newCount("core", []byte(ownSeed)); err != nil || c == nil || c.parse() != nil {
			t.Errorf("got %+v, %v", c, err)
		}
	}
}

// An item returns to the plain form when all its spilled counts have expired.
func TestSpreadItemBecomesPlain(t *testing.T) {
	it, err := newItem("", []byte(spreadSeed), 5000, spillAt)
	if err != nil {
		t.Fatal(err)
	}
	if value, _ := it.encode(); value[0] != spreadForm {
		t.Error("it became plain while counts may be in items of their own")
	}
	it.until = it.now
	if value, _ := it.encode(); value[0] != plainForm || it.epoch != 0 {
		t.Error("it did not become plain")
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
