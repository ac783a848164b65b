package flagfile

import "testing"

// The values come from Austin Appleby's MurmurHash3_x86_32, one for each length of
// the tail after whole blocks.
func TestMurmur3(t *testing.T) {
	for text, want := range map[string]uint32{
		"":                 0,
		"a":                0x3c2569b2,
		"ab":               0x9bbfd75f,
		"abc":              0xb3dd93fa,
		"abcd":             0x43ed676a,
		"Hello, world!":    0xc0363e43,
		"\xff\xff\xff\xff": 0x76293b50,
		"\x00\x00\x00\x00": 0x2362f9de,
		"\x21\x43\x65\x87": 0xf55b516b,
		"\x21\x43\x65":     0x7e4a8634,
		"\x21\x43":         0xa0f7b07a,
		"\x21":             0x72661cf4,
	} {
		if got := murmur3(text); got != want {
			t.Errorf("%q: got %#x, want %#x", text, got, want)
		}
	}
}
