package peers

import (
	"context"

	"github.com/didip/tollbooth/v8"
	"github.com/didip/tollbooth/v8/limiter"
)

var tollboothMemory = Peer{Name: "tollbooth", Open: func(c Config) (*Limiter, error) {
	l := tollbooth.NewLimiter(float64(c.Quota)/c.Window.Seconds(), &limiter.ExpirableOptions{DefaultExpirationTTL: c.Window})
	l.SetBurst(int(c.Quota))
	l.SetIPLookup(limiter.IPLookup{Name: KeyHeader})
	return &Limiter{
		Take:  func(_ context.Context, key string) (bool, error) { return !l.LimitReached(key), nil },
		Wrap:  tollbooth.HTTPMiddleware(l),
		Close: func() {},
	}, nil
}}
