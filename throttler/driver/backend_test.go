package driver_test

import (
	"testing"

	"github.com/weir-go/weir/backend/backendtest"
	"github.com/weir-go/weir/throttler/algorithm"
	"github.com/weir-go/weir/throttler/driver"
)

// The example's backend meets the whole contract.
func TestTheExamplesContract(t *testing.T) {
	backendtest.Run(t, func(*testing.T) driver.Backend {
		return &counts{states: make(map[countName]*algorithm.State)}
	})
}
