package shares

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"

	"github.com/weir-go/weir/internal/invalid"
)

// MinKeyBytes is the shortest key that members may share.
const MinKeyBytes = 32

// TrimKey returns the key in the content of a file, without its line end.
func TrimKey(content []byte) []byte { return bytes.TrimRight(content, "\r\n") }

var errOtherKey = errors.New("it does not have this member's key")

// tlsOf returns the configuration of both ends of a connection between members that share
// key. The key is the seed of a signing key, so all members have the same signing key, and
// refuse a certificate with another. In TLS, each side proves that it can sign.
func tlsOf(key []byte) (*tls.Config, error) {
	if len(key) < MinKeyBytes {
		return nil, invalid.Errorf("shares: the key has %d bytes; it must have %d or more, such as from openssl rand -hex 32", len(key), MinKeyBytes)
	}
	seed, err := hkdf.Key(sha256.New, key, nil, "weir shares: members", ed25519.SeedSize)
	if err != nil {
		return nil, err
	}
	private := ed25519.NewKeyFromSeed(seed)
	ours := private.Public().(ed25519.PublicKey)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ours, private)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}},
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection compares the key itself
		VerifyConnection: func(s tls.ConnectionState) error {
			if theirs, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey); !ok || !theirs.Equal(ours) {
				return errOtherKey
			}
			return nil
		},
	}, nil
}
