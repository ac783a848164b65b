package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/weir-go/weir/throttler"
)

// bill is a message of the queue between models and the worker, here a channel.
type bill struct {
	receipt string
	tokens  int64
}

// work settles the bills of a queue, which may deliver one twice, or before its answer ends.
func work(t *throttler.Throttler, bills <-chan bill) {
	for b := range bills {
		for settle(context.Background(), t, b) != nil { // your queue delivers it again
			time.Sleep(time.Second)
		}
	}
}

// settle replaces the estimates of b by its tokens. After an error, b is to be delivered again.
func settle(ctx context.Context, t *throttler.Throttler, b bill) error {
	d, err := t.Open(b.receipt)
	if err == nil {
		_, err = t.SettlePolicies(ctx, d, map[string]int64{"org-tokens": b.tokens, "user-tokens": b.tokens})
	}
	if errors.Is(err, throttler.ErrInvalid) { // the estimate stays
		log.Print("a bill is dropped: ", err)
		return nil
	}
	if errors.Is(err, throttler.ErrSettled) {
		return nil
	}
	return err
}
