// Package invalid makes the errors about bad arguments.
package invalid

import (
	"errors"
	"fmt"
)

// Err is quota.ErrInvalid: see there.
var Err = errors.New("invalid argument")

// Errorf returns an error that wraps Err, with the text of fmt.Sprintf.
func Errorf(format string, args ...any) error { return &argumentError{fmt.Sprintf(format, args...)} }

type argumentError struct{ text string }

func (e *argumentError) Error() string        { return e.text }
func (e *argumentError) Is(target error) bool { return target == Err }
