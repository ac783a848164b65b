package main

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/local/consistency"
	"github.com/weir-go/weir/throttler"
)

// Names of the policies that the routes use.
const (
	corePolicy        = "core"
	searchPolicy      = "search"
	createTokenPolicy = "auth.createToken"
	orgPolicy         = "org"        // all members of an organisation together
	memberPolicy      = "org.member" // each of them
	secondaryPolicy   = "secondary"  // all requests of a caller, whatever they cost elsewhere
	proPolicy         = "core.pro"   // replaces core for callers with that plan
	streamsPolicy     = "streams"    // a caller's streams in flight
	upstreamPolicy    = "upstream"   // the requests of all processes to another API, which wait for their turn
)

// routePolicies are the policies that the routes use, with their limits if the configuration
// has none.
var routePolicies = []*throttler.Policy{
	{Name: corePolicy, Limits: []throttler.Limit{{Quota: 60, Window: time.Hour}}},
	{Name: searchPolicy, Limits: []throttler.Limit{{Quota: 30, Window: time.Minute}}},
	{Name: createTokenPolicy, Limits: []throttler.Limit{
		{Quota: 20, Window: time.Minute},
		{Quota: 5, Window: 3 * time.Second},
	}},
	{Name: orgPolicy, Limits: []throttler.Limit{{Quota: 100, Window: time.Minute}}},
	{Name: memberPolicy, Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}}},
	{Name: secondaryPolicy, Limits: []throttler.Limit{{Quota: 900, Window: time.Minute}}},
	{Name: proPolicy, Limits: []throttler.Limit{{Quota: 5000, Window: time.Hour}, {Quota: 100, Window: time.Minute}}},
	{Name: streamsPolicy, Limits: []throttler.Limit{{Quota: 5, Window: 30 * time.Second, Algorithm: throttler.InFlight}}},
	{Name: upstreamPolicy, Limits: []throttler.Limit{{Quota: 20, Window: 10 * time.Second, Algorithm: throttler.LeakyBucket}}},
}

// routeTakes are the policies that one decision charges together.
var routeTakes = [][2]string{{corePolicy, secondaryPolicy}, {searchPolicy, secondaryPolicy}, {createTokenPolicy, secondaryPolicy}, {orgPolicy, memberPolicy}}

// routeWarnings names settings of c that hardly fit the routes.
func routeWarnings(c *config.Config) (texts []string) {
	for _, p := range routePolicies {
		texts = append(texts, waitWarnings(c.Policies[p.Name])...)
	}
	for _, take := range routeTakes {
		for i, name := range take {
			if partner := take[1-i]; c.Levels[name] == consistency.Leased && c.Levels[partner] == consistency.Exact {
				texts = append(texts, fmt.Sprintf("policy %q is leased and %q is exact, but a decision charges both: it asks the backend each time, and leases cost calls on top; write consistency: leased in both, or in neither", name, partner))
			}
		}
	}
	return texts
}

// waitWarnings names the limits that can let a request wait for longer than the server gives
// other requests: its client, or a proxy, will hardly wait that long.
func waitWarnings(p *throttler.Policy) (texts []string) {
	for i, l := range p.Limits {
		if !l.Algorithm.Queues() {
			continue
		}
		wait := time.Duration(float64(l.Capacity()-1) / float64(l.Quota) * float64(l.Window)).Round(time.Millisecond)
		bound := ""
		switch {
		case wait > writeTimeout:
			bound = fmt.Sprintf("the server's write timeout of %v", writeTimeout)
		case wait > drainTimeout:
			bound = fmt.Sprintf("the %v that requests in flight have when the demo ends", drainTimeout)
		default:
			continue
		}
		texts = append(texts, fmt.Sprintf("policy %q: limit %d, %v, lets a request wait up to %v for its start, longer than %s; set max_wait", p.Name, i, l, wait, bound))
	}
	return texts
}
