// Package receiptkey has the key that seals receipts: it encrypts and authenticates what package
// throttler writes in them.
package receiptkey

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-go/weir/internal/invalid"
)

// A text is, in base64,
//
//	1   version
//	4   id of the key
//	16  id of the receipt, random
//	    the receipt, encrypted and authenticated
//
// The id of the receipt also salts the encryption key, so that no two texts have the same key.
const (
	version    = 1
	keyIDBytes = 4
	headBytes  = 1 + keyIDBytes + IDBytes
)

// IDBytes is the number of bytes of a receipt's id.
const IDBytes = 16

// MinSecret is the least number of bytes of a secret.
const MinSecret = 16

// ErrKey is wrapped by errors about receipts that need another key, or a key where there is none.
var ErrKey = errors.New("receipt: not the key of this receipt")

// A Key encrypts receipts. The zero value is no key.
type Key struct {
	secret string
	id     [keyIDBytes]byte // derived from the secret; it says nothing about it
}

// NewKey returns the key of a secret of MinSecret bytes or more, which all processes share, or
// no key for nil. A shorter one is an error that wraps quota.ErrInvalid: also an empty one, which
// may be an environment variable that is not set.
func NewKey(secret []byte) (Key, error) {
	switch n := len(secret); {
	case secret == nil:
		return Key{}, nil
	case n < MinSecret:
		return Key{}, invalid.Errorf("ReceiptKey has %d bytes; it must have %d or more, the same in all processes", n, MinSecret)
	}
	k := Key{secret: string(secret)}
	id, err := hkdf.Key(sha256.New, secret, nil, "weir receipt key", keyIDBytes)
	if err != nil {
		return Key{}, err
	}
	copy(k.id[:], id)
	return k, nil
}

// String returns the id of k, which is in the texts that it seals, and not the secret.
func (k Key) String() string { return fmt.Sprintf("receipt key %x", k.id) }

// GoString returns String.
func (k Key) GoString() string { return k.String() }

// Seal returns the text of plain, a receipt with that id, of IDBytes.
func (k Key) Seal(id string, plain []byte) (text string, err error) {
	if k.secret == "" {
		return "", fmt.Errorf("%w: there is no key; throttler.Options.ReceiptKey must be set, to the same in all processes", ErrKey)
	}
	seal, err := k.cipher(id)
	if err != nil {
		return "", err
	}
	head := slices.Concat([]byte{version}, k.id[:], []byte(id))
	return base64.RawURLEncoding.EncodeToString(seal.Seal(head, make([]byte, seal.NonceSize()), plain, head)), nil
}

// Unseal returns the receipt in a text of Seal. A text that was changed is an error that wraps
// quota.ErrInvalid, and one that another key has sealed is an error that wraps ErrKey.
func (k Key) Unseal(text string) (id string, plain []byte, err error) {
	sealed, err := base64.RawURLEncoding.DecodeString(text)
	// One text is right: the decoder ignores newlines, and some bits of the last byte.
	if err != nil || len(sealed) < headBytes || base64.RawURLEncoding.EncodeToString(sealed) != text {
		return "", nil, invalid.Errorf("receipt: %d bytes are not a receipt; it must be a text that Receipt returned, unchanged", len(text))
	}
	head, keyID := sealed[:headBytes], sealed[1:1+keyIDBytes]
	switch {
	case sealed[0] != version:
		return "", nil, invalid.Errorf("receipt: version %d; this weir knows version %d", sealed[0], version)
	case k.secret == "":
		return "", nil, fmt.Errorf("%w: there is no key; throttler.Options.ReceiptKey must be set, to the same in all processes", ErrKey)
	case string(keyID) != string(k.id[:]):
		return "", nil, fmt.Errorf("%w: it needs receipt key %x, and this is %v", ErrKey, keyID, k)
	}
	id = string(head[1+keyIDBytes:])
	seal, err := k.cipher(id)
	if err != nil {
		return "", nil, err
	}
	plain, err = seal.Open(nil, make([]byte, seal.NonceSize()), sealed[headBytes:], head)
	if err != nil {
		return "", nil, invalid.Errorf("receipt: it was cut or changed")
	}
	return id, plain, nil
}

// cipher returns the cipher of the receipt with that id.
func (k Key) cipher(id string) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, []byte(k.secret), []byte(id), "weir receipt", 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
