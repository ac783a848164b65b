package transport_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/transport"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer returns a response. Its headers are names and values in turn.
func answer(status int, headers ...string) *http.Response {
	h := make(http.Header)
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(""))}
}

var tenPerSecond = &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 10, Window: time.Second, Algorithm: throttler.LeakyBucket}}}

func newClient(t *testing.T, base roundTripper, retries int) *http.Client {
	t.Helper()
	tr, err := transport.New(throttler.New(memorybackend.NewDefault(), nil), transport.ByHost(tenPerSecond), &transport.Options{Base: base, Retries: retries})
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: tr}
}

// Three workers that each receive a Retry-After of two seconds are all served after little
// more than two seconds.
func TestWorkersThatAreSentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, requests := time.Now(), 0
		var mu sync.Mutex
		client := newClient(t, func(*http.Request) (*http.Response, error) {
			mu.Lock()
			requests++
			first := requests <= 3
			mu.Unlock()
			if first {
				time.Sleep(300 * time.Millisecond) // so that all have been sent
				return answer(http.StatusTooManyRequests, "Retry-After", "2"), nil
			}
			if early := time.Since(began); early < 2300*time.Millisecond {
				t.Errorf("a request after %v", early)
			}
			return answer(http.StatusOK), nil
		}, 1)
		var running sync.WaitGroup
		for range 3 {
			running.Go(func() {
				response, err := client.Post("http://example.com/", "text/plain", strings.NewReader("body"))
				if err != nil || response.StatusCode != http.StatusOK {
					t.Errorf("%v, %v", response, err)
				}
			})
		}
		running.Wait()
		if took := time.Since(began); took > 2800*time.Millisecond || requests != 6 {
			t.Errorf("%d requests took %v; want 6 within 2.8s", requests, took)
		}
	})
}

// A response can pause requests to its host, but no others.
func TestPauses(t *testing.T) {
	for name, test := range map[string]struct {
		status  int
		headers []string
		pause   time.Duration
	}{
		"nothing":                      {200, nil, 0},
		"a refusal without a time":     {429, nil, 0},
		"seconds":                      {429, []string{"Retry-After", "7"}, 7 * time.Second},
		"unavailable":                  {503, []string{"Retry-After", "7"}, 7 * time.Second},
		"GitHub's secondary limits":    {403, []string{"Retry-After", "60"}, time.Minute},
		"of a redirect":                {301, []string{"Retry-After", "7"}, 0},
		"a date, by another clock":     {429, []string{"Date", "Tue, 01 Jan 2030 00:00:00 GMT", "Retry-After", "Tue, 01 Jan 2030 00:00:09 GMT"}, 9 * time.Second},
		"a date that is over":          {429, []string{"Date", "Tue, 01 Jan 2030 00:00:00 GMT", "Retry-After", "Mon, 31 Dec 2029 23:00:00 GMT"}, 0},
		"no number":                    {429, []string{"Retry-After", "soon"}, 0},
		"negative":                     {429, []string{"Retry-After", "-7"}, 0},
		"longer than MaxPause":         {429, []string{"Retry-After", "99999999999999"}, time.Hour},
		"GitHub's, of the last one":    {200, []string{"Date", "Tue, 01 Jan 2030 00:00:00 GMT", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1893456030"}, 30 * time.Second},
		"GitHub's, with some left":     {200, []string{"X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "1893456030"}, 0},
		"a reset in seconds":           {429, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "12"}, 12 * time.Second},
		"both: the later one":          {429, []string{"Retry-After", "20", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "12"}, 20 * time.Second},
		"a reset that is not a number": {429, []string{"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "x"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newClient(t, func(*http.Request) (*http.Response, error) { return answer(test.status, test.headers...), nil }, 0)
				get := func(url string) (int, time.Duration) {
					began := time.Now()
					r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					response, err := client.Transport.RoundTrip(r)
					if err != nil {
						t.Fatal(err)
					}
					return response.StatusCode, time.Since(began)
				}
				if status, took := get("http://example.com/a"); status != test.status || took > 0 {
					t.Errorf("the first: %d after %v", status, took)
				}
				if _, took := get("http://other.example/"); took > 0 {
					t.Errorf("another host waits for %v", took)
				}
				if _, took := get("http://EXAMPLE.com/b"); took != max(test.pause, 100*time.Millisecond) {
					t.Errorf("the next one waits for %v, want %v", took, test.pause)
				}
			})
		})
	}
}

type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error { b.closed = true; return nil }

// A request that can't start in time is not sent. If a refused request can't be sent again, in
// time or at all, or has no retries left, its response is returned.
func TestRequestsThatAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		client := newClient(t, func(*http.Request) (*http.Response, error) {
			sent++
			return answer(http.StatusTooManyRequests, "Retry-After", "2"), nil
		}, 2)
		send := func(ctx context.Context, b io.Reader) (*http.Response, error) {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://example.com", b)
			if err != nil {
				t.Fatal(err)
			}
			return client.Transport.RoundTrip(r)
		}
		once := &body{Reader: strings.NewReader("body")}
		if response, err := send(t.Context(), once); err != nil || response.StatusCode != http.StatusTooManyRequests || sent != 1 {
			t.Errorf("a body that cannot be read again: %v, %v, sent %d times", response, err, sent)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := &body{Reader: strings.NewReader("body")}
		if _, err := send(short, late); !errors.Is(err, context.DeadlineExceeded) || !late.closed || sent != 1 {
			t.Errorf("in the pause: %v, closed %v, sent %d times", err, late.closed, sent)
		}
		time.Sleep(3 * time.Second)
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if response, err := send(short, http.NoBody); err != nil || response.StatusCode != http.StatusTooManyRequests || sent != 2 {
			t.Errorf("a pause beyond the deadline: %v, %v, sent %d times", response, err, sent)
		}
		if response, err := send(t.Context(), strings.NewReader("body")); err != nil || response.StatusCode != http.StatusTooManyRequests || sent != 5 {
			t.Errorf("refused each time: %v, %v, sent %d times", response, err, sent)
		}
	})
}

func TestOptions(t *testing.T) {
	th := throttler.New(memorybackend.NewDefault(), nil)
	for _, o := range []transport.Options{{Retries: -1}, {MaxPause: -1}, {MaxPause: 1 << 62}} {
		if _, err := transport.New(th, transport.ByHost(tenPerSecond), &o); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	free, err := transport.New(th, func(*http.Request) []throttler.Charge { return nil }, &transport.Options{Base: roundTripper(func(*http.Request) (*http.Response, error) {
		return answer(http.StatusOK), nil
	})})
	if err != nil {
		t.Fatal(err)
	}
	if response, err := (&http.Client{Transport: free}).Get("http://example.com"); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("without charges: %v, %v", response, err)
	}
}

// A request is in flight until its response is read or closed, or has no body. If it has no
// response or is sent again, it is no longer in flight.
func TestRequestsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 2, Window: time.Hour, Algorithm: throttler.InFlight}}}
		th := throttler.New(memorybackend.NewDefault(), nil)
		refused := false
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			switch r.URL.Path {
			case "/fails":
				return nil, errors.New("no connection")
			case "/empty":
				response := answer(http.StatusNoContent)
				response.Body = http.NoBody
				return response, nil
			case "/again":
				if refused = !refused; refused {
					return answer(http.StatusServiceUnavailable, "Retry-After", "1"), nil
				}
			}
			response := answer(http.StatusOK)
			response.Body = struct {
				io.ReadCloser
				io.Writer
			}{response.Body, io.Discard} // as after a switch of protocols
			return response, nil
		})
		tr, err := transport.New(th, transport.ByHost(policy), &transport.Options{Base: base, Retries: 1})
		if err != nil {
			t.Fatal(err)
		}
		inFlight := func(where string, want int64) {
			t.Helper()
			if d, err := th.Peek(t.Context(), policy.Charge("example.com")); err != nil || d.Limit(0).Used != want {
				t.Errorf("%s: %v, %v; want %d in flight", where, d, err, want)
			}
		}
		send := func(path string) *http.Response {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := tr.RoundTrip(r)
			if (err != nil) != (path == "/fails") {
				t.Errorf("%s: %v", path, err)
			}
			return response
		}
		send("/fails")
		inFlight("without a response", 0)
		_ = send("/empty").Body.Close()
		inFlight("without a body", 0)
		again := send("/again")
		inFlight("sent again", 1)
		time.Sleep(3 * time.Hour)
		inFlight("renewed", 1)
		if _, ok := again.Body.(io.Writer); !ok {
			t.Error("the body can be written to no more")
		}
		read := send("/")
		inFlight("two", 2)
		began := time.Now()
		go func() {
			time.Sleep(time.Minute)
			_ = again.Body.Close()
			_ = again.Body.Close()
		}()
		third := send("/")
		if waited := time.Since(began); waited < time.Minute || waited > time.Minute+time.Second {
			t.Errorf("the third request waited %v; want the minute that the first was in flight", waited)
		}
		if _, err := io.ReadAll(read.Body); err != nil {
			t.Error(err)
		}
		inFlight("read", 1)
		_ = third.Body.Close()
		inFlight("closed", 0)
	})
}

// A body that is not sent again is not opened again, since it would not be closed.
func TestABodyIsOpenedToBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for status, retries := range map[int]int{http.StatusTooManyRequests: 0, http.StatusForbidden: 1} {
			client := newClient(t, func(*http.Request) (*http.Response, error) { return answer(status, "Retry-After", "1"), nil }, retries)
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://example.com/", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			opened := 0
			r.GetBody = func() (io.ReadCloser, error) { opened++; return io.NopCloser(strings.NewReader("body")), nil }
			response, err := client.Do(r)
			if err != nil || response.StatusCode != status || opened != 0 {
				t.Errorf("%v, %v, opened %d times; want %d", response, err, opened, status)
				continue
			}
			_ = response.Body.Close()
		}
	})
}
