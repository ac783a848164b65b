//go:build !unix

package ports

import "math"

func maxFiles() int { return math.MaxInt32 }
