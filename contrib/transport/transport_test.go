package transport_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/contrib/transport"
	"github.com/weir-go/weir/throttler"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer returns a response. Its headers are names and values in turn.
func answer(status int, headers ...string) *http.Response {
	h := make(http.Header)
	for i := 0; i < len(headers); i += 2 {
		h.Add(headers[i], headers[i+1])
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
	const backoff = transport.DefaultBackoff
	const now = "Tue, 01 Jan 2030 00:00:00 GMT"
	const remaining = "X-RateLimit-Remaining"
	for name, test := range map[string]struct {
		status  int
		headers []string
		pause   time.Duration
	}{
		"nothing":                      {200, nil, 0},
		"unavailable, without a time":  {503, nil, 0},
		"forbidden":                    {403, nil, 0},
		"a refusal without a time":     {429, nil, backoff},
		"seconds":                      {429, []string{"Retry-After", "7"}, 7 * time.Second},
		"a fraction":                   {429, []string{"Retry-After", "1.5"}, 1500 * time.Millisecond},
		"0":                            {429, []string{"Retry-After", "0"}, backoff},
		"0, unavailable":               {503, []string{"Retry-After", "0"}, 0},
		"negative":                     {429, []string{"Retry-After", "-7"}, backoff},
		"no number":                    {429, []string{"Retry-After", "soon"}, backoff},
		"NaN":                          {429, []string{"Retry-After", "NaN"}, backoff},
		"Infinity":                     {429, []string{"Retry-After", "Infinity"}, backoff},
		"two points":                   {429, []string{"Retry-After", "1.2.3"}, backoff},
		"a point":                      {429, []string{"Retry-After", "."}, backoff},
		"unavailable":                  {503, []string{"Retry-After", "7"}, 7 * time.Second},
		"overloaded":                   {529, []string{"Retry-After", "7"}, 7 * time.Second},
		"GitHub's secondary limits":    {403, []string{"Retry-After", "60"}, time.Minute},
		"of a redirect":                {301, []string{"Retry-After", "7"}, 0},
		"twice":                        {429, []string{"Retry-After", "7", "Retry-After", "9"}, 9 * time.Second},
		"a list":                       {429, []string{"Retry-After", "7, 9"}, 9 * time.Second},
		"a date, by another clock":     {429, []string{"Date", now, "Retry-After", "Tue, 01 Jan 2030 00:00:09 GMT"}, 9 * time.Second},
		"a date that is over":          {429, []string{"Date", now, "Retry-After", "Mon, 31 Dec 2029 23:00:00 GMT"}, backoff},
		"a date without a Date":        {429, []string{"Retry-After", "Sat, 01 Jan 2000 00:00:09 GMT"}, 9 * time.Second},
		"longer than MaxPause":         {429, []string{"Retry-After", "99999999999999"}, time.Hour},
		"of 20 digits":                 {429, []string{"Retry-After", "99999999999999999999"}, time.Hour},
		"of 400 digits":                {429, []string{"Retry-After", strings.Repeat("9", 400)}, time.Hour},
		"a time in milliseconds":       {429, []string{"Date", now, "Retry-After", "1893456030000"}, 30 * time.Second},
		"Azure's, next to the rounded": {429, []string{"Retry-After", "2", "Retry-After-Ms", "1500"}, 1500 * time.Millisecond},
		"Azure's, not a number":        {429, []string{"Retry-After", "2", "Retry-After-Ms", "x"}, 2 * time.Second},

		"GitHub's, of the last one":     {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030"}, 30 * time.Second},
		"GitHub's, not modified":        {304, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030"}, 30 * time.Second},
		"GitHub's, forbidden":           {403, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030"}, 30 * time.Second},
		"GitHub's, with some left":      {200, []string{"Date", now, remaining, "1", "X-RateLimit-Reset", "1893456030"}, 0},
		"GitHub's, from a cache":        {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030", "X-From-Cache", "1"}, 0},
		"GitHub's, from a proxy":        {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030", "Age", "10"}, 0},
		"GitHub's, just fetched":        {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030", "Age", "0"}, 30 * time.Second},
		"forbidden without a time":      {403, []string{remaining, "0"}, backoff},
		"milliseconds":                  {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030000"}, 30 * time.Second},
		"microseconds":                  {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030000000"}, 30 * time.Second},
		"nanoseconds":                   {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456030000000000"}, 30 * time.Second},
		"a reset in the past":           {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893455000"}, 0},
		"a reset in seconds":            {429, []string{remaining, "0", "X-RateLimit-Reset", "12"}, 12 * time.Second},
		"a reset of 0":                  {200, []string{remaining, "0", "X-RateLimit-Reset", "0"}, 0},
		"below 0":                       {200, []string{remaining, "-3", "X-RateLimit-Reset", "12"}, 12 * time.Second},
		"Retry-After holds":             {429, []string{"Retry-After", "20", remaining, "0", "X-RateLimit-Reset", "12"}, 20 * time.Second},
		"Retry-After holds, if shorter": {429, []string{"Retry-After", "1", remaining, "0", "X-RateLimit-Reset", "60"}, time.Second},
		"a Retry-After of 0, and more":  {429, []string{"Retry-After", "0", remaining, "0", "X-RateLimit-Reset", "12"}, 12 * time.Second},
		"a reset that is not a number":  {429, []string{remaining, "0", "X-RateLimit-Reset", "x"}, backoff},
		"Discord's":                     {200, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "1893456002", "X-RateLimit-Reset-After", "2.5"}, 2500 * time.Millisecond},
		"X's":                           {200, []string{"Date", now, "X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", "1893456030"}, 30 * time.Second},
		"Jira's":                        {429, []string{"Date", now, remaining, "0", "X-RateLimit-Reset", "2030-01-01T00:05Z"}, 5 * time.Minute},
		"Linear's":                      {400, []string{"Date", now, "X-RateLimit-Requests-Remaining", "0", "X-RateLimit-Requests-Reset", "1893456030000"}, 30 * time.Second},
		"Together's, on a refusal":      {429, []string{"X-RateLimit-Reset", "12"}, 12 * time.Second},
		"Together's":                    {200, []string{"X-RateLimit-Reset", "12"}, 0},
		"GitLab's":                      {429, []string{"Date", now, "RateLimit-Remaining", "0", "RateLimit-Reset", "1893456030"}, 30 * time.Second},
		"an early draft's":              {200, []string{"RateLimit-Remaining", "0", "RateLimit-Reset", "12"}, 12 * time.Second},
		"OpenAI's": {200, []string{"X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Reset-Requests", "6m0s",
			"X-RateLimit-Remaining-Tokens", "9", "X-RateLimit-Reset-Tokens", "7m0s"}, 6 * time.Minute},
		"two limits": {200, []string{"X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Reset-Requests", "120ms",
			"X-RateLimit-Remaining-Tokens", "0", "X-RateLimit-Reset-Tokens", "2m59.5s"}, 2*time.Minute + 59500*time.Millisecond},
		"Anthropic's": {429, []string{"Date", now, "Anthropic-RateLimit-Tokens-Remaining", "0", "Anthropic-RateLimit-Tokens-Reset", "2030-01-01T00:00:30Z",
			"Anthropic-RateLimit-Requests-Remaining", "5", "Anthropic-RateLimit-Requests-Reset", "2030-01-01T00:01:00Z"}, 30 * time.Second},

		"the draft's":                     {200, []string{"RateLimit", `"p";r=0;t=30`}, 30 * time.Second},
		"the draft's, with some left":     {200, []string{"RateLimit", `"p";r=1;t=30`}, 0},
		"the draft's, of several":         {200, []string{"RateLimit", `"p";r=0;t=30, "q";r=9;t=90`, "RateLimit", `"s"; r=0; t=40; pk=:cGs=:`}, 40 * time.Second},
		"the draft's, with an odd name":   {200, []string{"RateLimit", `"a\",b;r=0;t=90";r=5;t=30`}, 0},
		"the draft's, of a refusal":       {429, []string{"RateLimit", `"p";r=0;t=30`}, 30 * time.Second},
		"the draft's, without a time":     {429, []string{"RateLimit", `"p";r=0`}, backoff},
		"the draft's, malformed":          {429, []string{"RateLimit", `"p;r=0;t=30`}, backoff},
		"the draft's, with a negative":    {429, []string{"RateLimit", `"p";r=0;t=-30`}, backoff},
		"the draft's, after Retry-After":  {429, []string{"Retry-After", "7", "RateLimit", `"p";r=0;t=30`}, 7 * time.Second},
		"the draft's, longer than it may": {200, []string{"RateLimit", `"p";r=0;t=999999999`}, time.Hour},
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
	for _, o := range []transport.Options{{Retries: -1}, {MaxPause: -1}, {MaxPause: 1 << 62}, {Backoff: -1}, {MaxPause: time.Second, Backoff: 2 * time.Second}, {Backoff: 2 * time.Hour}} {
		if _, err := transport.New(th, transport.ByHost(tenPerSecond), &o); !errors.Is(err, throttler.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for want, p := range map[string]*throttler.Policy{
		"policy is nil; it must be a policy":                                      nil,
		`policy "p": limit 0: window is missing; an in-flight has one, the lease`: {Name: "p", Limits: []throttler.Limit{{Quota: 3, Algorithm: throttler.InFlight}}},
		`policy "p": limit 0: window is 0s; it must be from 1ms`:                  {Name: "p", Limits: []throttler.Limit{{Quota: 3}}},
	} {
		wrong, err := transport.New(th, transport.ByHost(p), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&http.Client{Transport: wrong}).Get("http://example.com"); !errors.Is(err, throttler.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
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

// A response whose body does not come, or does not end, does not delay the next try, and is no
// longer in flight while that waits.
func TestABodyThatDoesNotCome(t *testing.T) {
	policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour, Algorithm: throttler.InFlight}}}
	for name, trickle := range map[string]bool{"nothing comes": false, "it trickles": true} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tries.Add(1) > 1 {
					return
				}
				w.Header().Set("Retry-After-Ms", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				flush := http.NewResponseController(w).Flush
				for flush() == nil && r.Context().Err() == nil {
					if !trickle {
						<-r.Context().Done()
					}
					_, _ = w.Write([]byte("."))
				}
			}))
			defer s.Close()
			tr, err := transport.New(throttler.New(memorybackend.NewDefault(), nil), transport.ByHost(policy), &transport.Options{Retries: 1})
			if err != nil {
				t.Fatal(err)
			}
			response, err := (&http.Client{Transport: tr}).Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK || tries.Load() != 2 {
				t.Errorf("%s after %d tries; want 200 after 2", response.Status, tries.Load())
			}
		})
	}
}

// The two ways of a connection that has switched protocols can end one after the other.
func TestAConnectionThatSwitchesProtocols(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		all, _ := io.ReadAll(both)
		_, _ = conn.Write(all)
	}))
	defer s.Close()
	policy := &throttler.Policy{Name: "api", Limits: []throttler.Limit{{Quota: 1, Window: time.Hour, Algorithm: throttler.InFlight}}}
	tr, err := transport.New(throttler.New(memorybackend.NewDefault(), nil), transport.ByHost(policy), nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	response, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	conn, ok := response.Body.(interface {
		io.ReadWriter
		CloseWrite() error
	})
	if !ok {
		t.Fatalf("the body is a %T, without Write or CloseWrite", response.Body)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if echo, err := io.ReadAll(conn); string(echo) != "hello" || err != nil {
		t.Errorf("the echo is %q, %v", echo, err)
	}
}

// Names of one host have one count.
func TestByHost(t *testing.T) {
	for name, urls := range map[string][]string{
		"example.com":      {"http://example.com", "http://EXAMPLE.com:80/", "http://example.com./a", "https://example.com:443", "https://example.com.:443", "http://example.com:"},
		"example.com:443":  {"http://example.com:443"},
		"example.com:8080": {"http://example.com:8080", "https://Example.Com.:8080"},
		"[2001:db8::a]":    {"http://[2001:DB8::A]", "http://[2001:db8::a]:80"},
		"[2001:db8::a]:81": {"http://[2001:DB8::A]:81"},
	} {
		for _, u := range urls {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
			if err != nil {
				t.Fatal(err)
			}
			if key := transport.ByHost(tenPerSecond)(r)[0].Key; key != name {
				t.Errorf("%s is charged to %q; want %q", u, key, name)
			}
		}
	}
}
