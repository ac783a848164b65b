package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"github.com/weir-go/weir/throttler/quota"
)

// integer is a whole number above zero. YAML would read 010 as 8.
type integer int64

var wholeNumber = regexp.MustCompile(`^[1-9][0-9]*$`)

const wholeMustBe = "a whole number, 1 or more, in decimal digits, such as 60"

func (w *integer) UnmarshalText(text []byte) error {
	if !wholeNumber.Match(text) {
		return errors.New("it must be " + wholeMustBe)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || n > quota.MaxQuota {
		return fmt.Errorf("it must be at most %d (2^53)", int64(quota.MaxQuota))
	}
	*w = integer(n)
	return nil
}

// duration is a time above zero.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := quota.ParseWindow(string(text))
	*d = duration(parsed)
	if err != nil {
		return errors.New("it must be " + durationMustBe)
	}
	return nil
}

const durationMustBe = "a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d"

// prefix begins all keys in a store.
type prefix string

var prefixForm = regexp.MustCompile(`^[\w.:/-]{1,64}$`)

func (p *prefix) UnmarshalText(text []byte) error {
	if *p = prefix(text); !prefixForm.Match(text) {
		return errors.New("it must be 1 to 64 letters, digits, and . _ - / :, such as staging:") //nolint:staticcheck // the colon ends the example
	}
	return nil
}

// part is a number above 0 and at most 1.
type part float64

func (p *part) UnmarshalText(text []byte) error {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(f > 0 && f <= 1) {
		return errors.New("it must be a part of a bucket's capacity, above 0 and at most 1, such as 0.5")
	}
	*p = part(f)
	return nil
}

// Address is a host and a port, such as 127.0.0.1:8080, as a value in a file.
type Address string

// ListenAddress is an Address that may leave out the host, for all interfaces.
type ListenAddress string

// UnmarshalText sets a to the text, or returns an error if that is not an Address.
func (a *Address) UnmarshalText(text []byte) error {
	*a = Address(text)
	return checkAddress(text, true)
}

// UnmarshalText sets a to the text, or returns an error if that is not a ListenAddress.
func (a *ListenAddress) UnmarshalText(text []byte) error {
	*a = ListenAddress(text)
	return checkAddress(text, false)
}

var (
	hostName   = regexp.MustCompile(`^[\w.:%-]*$`)
	portNumber = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
)

const addressMustBe = "a host and a port, such as 127.0.0.1:8080"

func checkAddress(text []byte, hostNeeded bool) error {
	host, port, err := net.SplitHostPort(string(text))
	if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || !portNumber.MatchString(port) || !hostName.MatchString(host) || hostNeeded && host == "" {
		return errors.New("it must be " + addressMustBe)
	}
	return nil
}

// The shortest prefixes of a proxy's network, equal to the largest private networks:
// 10.0.0.0/8 and fc00::/7. A shorter prefix includes public addresses, and a client at one
// could choose the address that it is counted by.
const (
	minPrefix4 = 8
	minPrefix6 = 7
)

// ProxyNetwork is an address range of proxies with a trusted X-Forwarded-For, such as
// 10.0.0.0/8, as a value in a file.
type ProxyNetwork netip.Prefix

// UnmarshalText sets n to the text, or returns an error if that is not a ProxyNetwork.
func (n *ProxyNetwork) UnmarshalText(text []byte) error {
	prefix, err := netip.ParsePrefix(string(text))
	switch {
	case err != nil:
		return errors.New("it must be an address range such as 10.0.0.0/8 or 192.0.2.7/32")
	case prefix.Addr().Is4In6():
		return errors.New("it must be in the form of IPv4, such as 10.0.0.0/8")
	case prefix.Addr().Is4() && prefix.Bits() < minPrefix4, prefix.Addr().Is6() && prefix.Bits() < minPrefix6:
		return fmt.Errorf("it must be your proxies' own range, at most a /%d (of IPv6 a /%d): a client inside it could choose the address that it is counted by", minPrefix4, minPrefix6)
	case prefix.Masked() != prefix:
		return fmt.Errorf("it must be %v for the range, or %s for the one address", prefix.Masked(), netip.PrefixFrom(prefix.Addr(), prefix.Addr().BitLen()))
	}
	*n = ProxyNetwork(prefix)
	return nil
}
