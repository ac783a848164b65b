package shadow_test

import (
	"context"
	"fmt"
	"log"
	"runtime"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/guard/shadow"
	"github.com/weir-go/weir/throttler"
)

// A candidate receives the takes that the serving backend decides, and the statistics report
// whether the two agree.
func Example() {
	serving, candidate := memorybackend.NewDefault(), memorybackend.NewDefault() // in a server: Memcached, say, and Redis
	backend, err := shadow.New(serving, candidate, &shadow.Options{Deadline: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	defer backend.Close()

	t := throttler.New(backend, nil)
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}}
	for range 3 {
		if _, err := t.Take(context.Background(), core.Charge("alice")); err != nil {
			log.Fatal(err)
		}
	}
	for backend.Stats().Compared < 3 {
		runtime.Gosched() // the candidate decides in the background
	}
	s := backend.Stats()
	fmt.Println("compared", s.Compared, "agreed", s.Agreed)
	// Output: compared 3 agreed 3
}
