package quota

import "github.com/weir-go/weir/internal/invalid"

// ErrInvalid is wrapped by errors about an argument, of every package. The text
// names the field, its value, and what would be right. Nothing was sent to a backend.
var ErrInvalid = invalid.Err
