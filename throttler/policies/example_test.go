package policies_test

import (
	"context"
	"fmt"
	"log"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/policies"
)

// The policies of a running program change, and counts continue.
func Example() {
	var table policies.Table
	code := table.Source("code")
	now := clock.NewManual(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table, Clock: now})
	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	take := func() {
		d, err := t.Take(context.Background(), core.Charge("alice"))
		if err != nil {
			fmt.Println(err)
			return
		}
		switch s := d.Binding(); {
		case d.Blocked:
			fmt.Println("blocked until", d.RetryAt().Format(time.TimeOnly))
		default:
			fmt.Println("allowed", d.Allowed, "used", s.Used, "of", s.Limit.Quota)
		}
	}
	change := func(change func(e *policies.Edit)) {
		if err := code.Edit(change); err != nil {
			fmt.Println(err)
		}
	}
	take()
	change(func(e *policies.Edit) {
		e.Set(&throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 30, Window: time.Hour}}})
	})
	take()
	change(func(e *policies.Edit) {
		e.Override(policies.Override{Policy: "core", Key: "alice", Blocked: true, Until: now.Now().Add(time.Minute), Reason: "floods"})
	})
	take()
	now.Advance(time.Minute)
	take()
	change(func(e *policies.Edit) { e.Set(&throttler.Policy{Name: "core"}) })
	// Output:
	// allowed true used 1 of 60
	// allowed true used 2 of 30
	// blocked until 03:05:05
	// allowed true used 3 of 30
	// quota: policy "core" has 0 limits; it must have from 1 to 16
}

// A file is watched, and counts continue when it changes.
func ExampleWatchFile() {
	backend, path := memorybackend.NewDefault(), "testdata/policies.json"

	var table policies.Table
	t := throttler.New(backend, &throttler.Options{Policies: &table})

	file, err := policies.WatchFile(table.Source("file"), path, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()

	core := &throttler.Policy{Name: "core", Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}}
	for _, key := range []string{"alice", "acme", "mallory"} {
		d, err := t.Take(context.Background(), core.Charge(key))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, "allowed", d.Allowed, "limit", d.Limit(0).Limit.Quota)
	}
	// Output:
	// alice allowed true limit 5000
	// acme allowed true limit 50000
	// mallory allowed false limit 5000
}

// A bucket that moves to another organization keeps its count.
func Example_parents() {
	var table policies.Table
	code := table.Source("code")
	t := throttler.New(memorybackend.NewDefault(), &throttler.Options{Policies: &table})
	bucket := &throttler.Policy{Name: "bucket-7", Limits: []throttler.Limit{{Quota: 100, Window: time.Hour}}}
	link := func(org string) {
		linked := &throttler.Policy{Name: bucket.Name, Limits: bucket.Limits, Parent: "orgs", ParentKey: org}
		if err := code.Edit(func(e *policies.Edit) {
			e.Set(&throttler.Policy{Name: "orgs", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour}}})
			e.Set(linked)
		}); err != nil {
			log.Fatal(err)
		}
	}
	take := func() {
		d, err := t.Take(context.Background(), bucket.Charge("b7"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("allowed", d.Allowed)
		for _, s := range d.Limits() {
			fmt.Println("  ", s.Policy.Name, s.Key, "used", s.Used, "of", s.Limit.Quota)
		}
	}
	link("acme")
	take()
	take()
	take()
	link("blue")
	take()
	// Output:
	// allowed true
	//    bucket-7 b7 used 1 of 100
	//    orgs acme used 1 of 2
	// allowed true
	//    bucket-7 b7 used 2 of 100
	//    orgs acme used 2 of 2
	// allowed false
	//    bucket-7 b7 used 2 of 100
	//    orgs acme used 2 of 2
	// allowed true
	//    bucket-7 b7 used 3 of 100
	//    orgs blue used 1 of 2
}
