package middleware

import (
	"fmt"

	"github.com/weir-go/weir/throttler"
)

// invalid returns an error that wraps [throttler.ErrInvalid].
func invalid(format string, args ...any) error {
	return &invalidError{fmt.Sprintf(format, args...)}
}

type invalidError struct{ text string }

func (e *invalidError) Error() string        { return "middleware: " + e.text }
func (e *invalidError) Is(target error) bool { return target == throttler.ErrInvalid }
