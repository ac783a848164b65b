package throttler

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by errors of a backend that did not answer, or
// could not. Whether the charge was made is then unknown, and it is not sent
// again: charging twice would be worse than charging once too little.
var ErrUnavailable = errors.New("backend unavailable")

// ErrInvalid is wrapped by errors about an argument. The text names the field,
// its value, and what would be right. Nothing was sent to the backend.
var ErrInvalid = errors.New("invalid argument")

// invalid returns an error that wraps ErrInvalid and reads "throttler: …".
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return "throttler: " + e.text }
func (e *invalidError) Is(target error) bool { return target == ErrInvalid }
