package memorybackend_test

import (
	"testing"

	"github.com/weir-go/weir/backend/backendtest"
	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
)

func TestContract(t *testing.T) {
	backendtest.Run(t, func(*testing.T) throttler.Backend { return memorybackend.New(nil) })
}

func TestHistories(t *testing.T) {
	backendtest.Histories(t, func(*testing.T) throttler.Backend { return memorybackend.New(nil) })
}
