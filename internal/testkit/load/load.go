// Package load runs many HTTP clients against rate limits and checks the answers:
// no client gets more than its quota in a window, the reset time does not change
// inside one, and no request fails.
package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Config describes a load run. All fields except Prefix and Seed are required.
type Config struct {
	URLs    []string      // of the processes; each request goes to a random one
	Path    string        // of the resource, limited by one fixed window for each token
	Clients int           // each sends one request at a time, with its own token
	Every   time.Duration // mean time between two requests of a client
	Prefix  string        // of the clients' tokens
	Seed    uint64        // of the pauses, and of the choice of a process
}

// Run sends requests until ctx is done, and returns a report of all of them. If each
// is not nil, Run calls it every second with a report of that second.
func Run(ctx context.Context, c Config, report func(Report)) Report {
	l := &load{Config: c, client: &http.Client{
		Transport: &http.Transport{MaxIdleConnsPerHost: c.Clients},
		Timeout:   30 * time.Second,
	}}
	defer l.client.CloseIdleConnections()
	var wg sync.WaitGroup
	for i := range c.Clients {
		random := rand.New(rand.NewPCG(c.Seed, uint64(i)))
		wg.Go(func() { l.runClient(ctx, random, fmt.Sprint(c.Prefix, i)) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var total Report
	for {
		select {
		case <-ticker.C:
			second := l.take()
			if report != nil {
				report(second)
			}
			total.add(second)
		case <-done:
			total.add(l.take())
			return total
		}
	}
}

// Report is the clients' result.
type Report struct {
	Served, Refused int
	Undecided       int      // served without rate headers: no decision was made
	Wrong           []string // broken promises, the first few of them
	WrongCount      int

	Latencies []time.Duration
}

// Quantile returns the latency that so many percent of the requests stayed below.
func (r *Report) Quantile(percent int) time.Duration {
	if len(r.Latencies) == 0 {
		return 0
	}
	slices.Sort(r.Latencies)
	return r.Latencies[min(len(r.Latencies)*percent/100, len(r.Latencies)-1)]
}

// mostWrong bounds the length of Wrong.
const mostWrong = 20

func (r *Report) add(o Report) {
	r.Served += o.Served
	r.Refused += o.Refused
	r.Undecided += o.Undecided
	r.WrongCount += o.WrongCount
	r.Wrong = append(r.Wrong, o.Wrong[:min(len(o.Wrong), mostWrong-len(r.Wrong))]...)
	r.Latencies = append(r.Latencies, o.Latencies...)
}

type load struct {
	Config
	client *http.Client

	mu     sync.Mutex
	report Report // since it was last taken
}

func (l *load) take() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.report
	l.report = Report{}
	return r
}

// runClient runs one client until ctx is done.
func (l *load) runClient(ctx context.Context, random *rand.Rand, token string) {
	var w window
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(random.Int64N(2 * int64(l.Every)))):
		}
		began := time.Now()
		status, header, err := l.get(random, token)
		took := time.Since(began)

		l.mu.Lock()
		r := &l.report
		r.Latencies = append(r.Latencies, took)
		wrong := ""
		switch {
		case err != nil:
			wrong = err.Error()
		case status == http.StatusOK && header.Get("X-RateLimit-Reset") == "":
			r.Undecided++
			w.undecided++
		case status == http.StatusOK:
			r.Served++
			wrong = w.note(header, true)
		case status == http.StatusTooManyRequests:
			r.Refused++
			wrong = w.note(header, false)
		default:
			wrong = fmt.Sprintf("status %d", status)
		}
		if wrong != "" {
			r.WrongCount++
			if len(r.Wrong) < mostWrong {
				r.Wrong = append(r.Wrong, token+": "+wrong)
			}
		}
		l.mu.Unlock()
	}
}

func (l *load) get(random *rand.Rand, token string) (int, http.Header, error) {
	first := random.IntN(len(l.URLs))
	var response *http.Response
	for i := range l.URLs {
		// Without the run's context, so that a request in flight at the end is finished.
		request, err := http.NewRequest(http.MethodGet, l.URLs[(first+i)%len(l.URLs)]+l.Path, nil)
		if err != nil {
			return 0, nil, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err = l.client.Do(request)
		if err == nil {
			break
		}
		// The process is restarting: a balancer would go to the next.
		if !errors.Is(err, syscall.ECONNREFUSED) || i == len(l.URLs)-1 {
			return 0, nil, err
		}
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return 0, nil, err
	}
	return response.StatusCode, response.Header, nil
}

// window is a client's knowledge of its current window.
type window struct {
	reset     int64 // Unix s, rounded up
	served    int
	undecided int // served without a decision in time; it may have been charged
}

// note checks an answer against earlier ones. It returns the mistake, or "".
func (w *window) note(header http.Header, served bool) string {
	var numbers [4]int64
	for i, name := range []string{"Limit", "Used", "Remaining", "Reset"} {
		n, err := strconv.ParseInt(header.Get("X-RateLimit-"+name), 10, 64)
		if err != nil || n < 0 {
			return "a rate header is missing"
		}
		numbers[i] = n
	}
	limit, used, remaining, reset := numbers[0], numbers[1], numbers[2], numbers[3]
	switch {
	case reset == w.reset:
	case reset < w.reset:
		return fmt.Sprintf("reset went back from %d to %d", w.reset, reset)
	case time.Now().UnixMilli() < (w.reset-1)*1000: // rounded up, it is at most a second late
		return fmt.Sprintf("reset moved from %d to %d inside the window", w.reset, reset)
	default:
		*w = window{reset: reset, undecided: w.undecided} // some undecided may count in the new window
	}
	if served {
		w.served++
	}
	switch {
	case int64(w.served) > limit:
		return fmt.Sprintf("%d were served in a window of %d", w.served, limit)
	case served && (used < int64(w.served) || used > int64(w.served+w.undecided)):
		return fmt.Sprintf("used is %d, %d were served", used, w.served)
	case !served && (used != limit || remaining != 0):
		return fmt.Sprintf("refused with %d used of %d", used, limit)
	}
	return ""
}
