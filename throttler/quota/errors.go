package quota

import "github.com/weir-go/weir/internal/invalid"

// ErrInvalid is wrapped by every package's errors about arguments. The text names the
// field, its value, and what it must be. Nothing was sent to a backend.
var ErrInvalid = invalid.Err
