package quota_test

import (
	"encoding/json"
	"fmt"
	"log"

	"github.com/weir-go/weir/throttler/quota"
)

// A program's own configuration can have limits as text.
func ExampleParseLimit() {
	var config struct{ Core, Search quota.Limit }
	text := `{"core": "5000 per 1d aligned", "search": "30 per 1m token-bucket burst 10"}`
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		log.Fatal(err)
	}
	fmt.Println(config.Core)
	fmt.Println(config.Search, "with a burst of", config.Search.Burst)
	_, err := quota.ParseLimit("30 a m")
	fmt.Println(err)
	// Output:
	// 5000 per 24h0m0s (fixed-window, aligned)
	// 30 per 1m0s (token-bucket) with a burst of 10
	// quota: limit is "30 a m"; it must be a quota, per, and a window, such as 10 per 1m, 10/hour, 10 per 30 days or 10 per month
}
