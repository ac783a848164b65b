package config

import (
	"errors"
	"net"
	"regexp"
	"strconv"
)

// Address is a host and a port, such as 127.0.0.1:8080, as a value in a file.
type Address string

// ListenAddress is an Address whose host may be left out, for all interfaces.
type ListenAddress string

var errAddress = errors.New("it must be a host and a port, such as 127.0.0.1:8080")

// UnmarshalText sets a to the text, or returns an error that says what it must be.
func (a *Address) UnmarshalText(text []byte) error {
	host, err := splitAddress(string(text))
	if err != nil || host == "" {
		return errAddress
	}
	*a = Address(text)
	return nil
}

// UnmarshalText sets a to the text, or returns an error that says what it must be.
func (a *ListenAddress) UnmarshalText(text []byte) error {
	if _, err := splitAddress(string(text)); err != nil {
		return errAddress
	}
	*a = ListenAddress(text)
	return nil
}

var (
	hostName   = regexp.MustCompile(`^[\w.:%-]*$`)
	portNumber = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
)

// splitAddress returns the host of an address, which may be empty.
func splitAddress(text string) (host string, err error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil || !hostName.MatchString(host) || !portNumber.MatchString(port) {
		return "", errAddress
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return host, err
}
