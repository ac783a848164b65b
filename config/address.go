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

// UnmarshalText sets a to the text, or returns an error that says what it must be.
func (a *Address) UnmarshalText(text []byte) error {
	*a = Address(text)
	return checkAddress(text, true)
}

// UnmarshalText sets a to the text, or returns an error that says what it must be.
func (a *ListenAddress) UnmarshalText(text []byte) error {
	*a = ListenAddress(text)
	return checkAddress(text, false)
}

var (
	hostName   = regexp.MustCompile(`^[\w.:%-]*$`)
	portNumber = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)
)

func checkAddress(text []byte, hostNeeded bool) error {
	host, port, err := net.SplitHostPort(string(text))
	if _, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || !portNumber.MatchString(port) || !hostName.MatchString(host) || hostNeeded && host == "" {
		return errors.New("it must be a host and a port, such as 127.0.0.1:8080")
	}
	return nil
}
