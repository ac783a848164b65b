package main

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// tokensConfig is the bearer tokens that the demo knows. A caller without one is
// counted by address.
type tokensConfig struct {
	any      bool              // every token is a caller of its own
	subjects map[string]string // of each token
	madeUp   bool              // the tokens are no secret: they are the demo's own
}

// defaultTokens returns the tokens of a demo that configures none.
func defaultTokens() tokensConfig {
	return tokensConfig{madeUp: true, subjects: map[string]string{"demo-alice": "alice", "demo-bob": "bob"}}
}

// subject returns the subject of a token.
func (c *tokensConfig) subject(token string) (subject string, ok bool) {
	if c.any {
		sum := sha256.Sum256([]byte(token)) // as long as its sender likes, and secret
		return hex.EncodeToString(sum[:]), true
	}
	subject, ok = c.subjects[token]
	return subject, ok
}

// tokenForm is RFC 6750's: anything else could not be sent.
var tokenForm = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)

func readTokens(v value) tokensConfig {
	if text, ok := v.peek(); ok && text == "any" {
		return tokensConfig{any: true}
	}
	c := tokensConfig{subjects: map[string]string{}}
	for _, e := range v.entries("any, or a mapping of tokens, such as {demo-alice: {subject: alice}}") {
		if !tokenForm.MatchString(e.key) {
			e.value.problem("the token %q cannot be sent; it must be letters, digits and - . _ ~ + /, with = at its end alone", e.key)
		}
		subject := e.value.fields("subject")["subject"]
		if c.subjects[e.key] = e.key; !subject.missing() {
			c.subjects[e.key], _ = subject.scalar("the name of a caller, such as alice")
		}
	}
	return c
}
