package shares_test

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/weir-go/weir/local/shares"
	"github.com/weir-go/weir/throttler"
)

func Example() {
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{
		{Quota: 300, Window: 10 * time.Second, Algorithm: throttler.TokenBucket, Burst: 30},
	}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	self := listener.Addr().String()
	key := []byte("32 random bytes or more, from a file")

	transport, err := shares.NewHTTP(self, key, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer transport.Close()
	list := shares.List{Epoch: 1, Members: []string{self}} // and the others
	backend, err := shares.New(self, list, transport, []*throttler.Policy{core}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	transport.Serve(listener, backend.Receive)

	t := throttler.New(backend, nil)
	for !backend.Status().Valid { // some milliseconds, if all members are there
		time.Sleep(time.Millisecond)
	}
	d, err := t.Take(context.Background(), core.Charge("alice"))
	fmt.Println(d.Allowed, d.Limit(0).Remaining, err)
	// Output: true 29 <nil>
}
