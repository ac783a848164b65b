package shares

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/invalid"
)

// MinKeyBytes is the shortest key that members may share.
const MinKeyBytes = 32

// TrimKey returns the key that a file has, without its line end.
func TrimKey(content []byte) []byte { return bytes.TrimRight(content, "\r\n") }

func checkKey(key []byte) error {
	if len(key) < MinKeyBytes {
		return invalid.Errorf("shares: the key has %d bytes; it must have %d or more, such as from openssl rand -hex 32", len(key), MinKeyBytes)
	}
	return nil
}

// seal authenticates what a message says. Two lists of fields never have the same bytes
// under it, and what one purpose seals is no seal for another.
func seal(key []byte, purpose string, fields ...string) string {
	mac := hmac.New(sha256.New, key)
	for _, field := range append([]string{purpose}, fields...) {
		_ = binary.Write(mac, binary.BigEndian, uint64(len(field))) // a hash returns no errors
		mac.Write([]byte(field))
	}
	return hex.EncodeToString(mac.Sum(nil))
}

func sameSeal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// challenges keep a receiver from accepting a message twice. A message is for one of the
// two latest challenges, which a sender learns from the receiver, and a nonce is accepted
// once for each. No clock is compared with another's, and a receiver that has started
// again accepts nothing that it accepted before.
type challenges struct {
	every time.Duration // a new one, or sooner if one has maxNonces

	mu           sync.Mutex
	since        time.Time
	latest, last challenge
}

type challenge struct {
	text   string
	nonces map[string]bool // that were accepted
}

// maxNonces bounds what is remembered of one challenge.
const maxNonces = 1 << 16

func newChallenge() challenge { return challenge{rand.Text(), make(map[string]bool)} }

// accept reports whether a message is the first of its nonce for a challenge of now. If not
// and another challenge helps, it returns that one.
func (c *challenges) accept(text, nonce string, now time.Time) (ok bool, latest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch age := now.Sub(c.since); {
	case c.latest.text == "" || age > 2*c.every || age < 0:
		c.latest, c.last, c.since = newChallenge(), challenge{}, now
	case age > c.every || len(c.latest.nonces) >= maxNonces:
		c.latest, c.last, c.since = newChallenge(), c.latest, now
	}
	for _, known := range []*challenge{&c.latest, &c.last} {
		if text == "" || known.text != text {
			continue
		}
		if known.nonces[nonce] {
			return false, ""
		}
		if len(known.nonces) >= maxNonces {
			break // it is the last one: the latest has room
		}
		known.nonces[nonce] = true
		return true, ""
	}
	return false, c.latest.text
}
