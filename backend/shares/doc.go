package shares

import (
	"fmt"

	"github.com/weir-go/weir/throttler"
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("shares: "+format+": %w", append(args, throttler.ErrInvalid)...)
}
