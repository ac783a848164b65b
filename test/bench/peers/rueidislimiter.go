package peers

import (
	"context"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislimiter"
)

var rueidisLimiter = Peer{Name: "rueidislimiter", Open: func(c Config) (*Limiter, error) {
	var client rueidis.Client
	l, err := rueidislimiter.NewRateLimiter(rueidislimiter.RateLimiterOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{c.Redis}},
		ClientBuilder: func(o rueidis.ClientOption) (_ rueidis.Client, err error) {
			client, err = rueidis.NewClient(o)
			return client, err
		},
		KeyPrefix: "rueidis",
		Limit:     int(c.Quota),
		Window:    c.Window,
	})
	if err != nil {
		return nil, err
	}
	return &Limiter{
		Take: func(ctx context.Context, key string) (bool, error) {
			r, err := l.Allow(ctx, key)
			return r.Allowed, err
		},
		Close: func() { client.Close() },
	}, nil
}}
