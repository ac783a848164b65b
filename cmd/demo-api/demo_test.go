package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// demo is a demo that runs in this process.
type demo struct {
	t      *testing.T
	file   string // its configuration
	url    string
	debug  string // URL of the operator's listener
	stop   context.CancelFunc
	ended  chan error // the result of run
	client *http.Client
	stdout *output
	stderr *output
}

// patient sets a long deadline: on a busy machine, the default may pass, and requests fail.
const patient = "deadline: 20s\n"

// startDemo starts a demo on a free port. It ends with the test, and must then end without an
// error.
func startDemo(t *testing.T, config string) *demo {
	t.Helper()
	file := writeConfig(t, config+patient)
	args := []string{"-listen", "127.0.0.1:0", "-config", file}
	ctx, stop := context.WithCancel(context.Background()) // t.Context ends before the cleanup that stops the demo
	d := &demo{
		t: t, file: file, stop: stop, ended: make(chan error, 1),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 30 * time.Second},
		stdout: newOutput(), stderr: newOutput(),
	}
	go func() { d.ended <- run(ctx, args, d.stdout, d.stderr) }()
	t.Cleanup(func() {
		stop()
		d.client.CloseIdleConnections()
		if err := d.end(); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	d.url = d.stdout.find(t, `serving on (http://\S+);`, d.ended)
	d.debug = d.stdout.find(t, `curl +(http://\S+)/debug\n`, d.ended)
	return d
}

// end waits until run has returned, and returns its result.
func (d *demo) end() error {
	err := <-d.ended
	d.ended <- err
	return err
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "demo.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// writeFiles writes files, by their names, into a separate directory.
func writeFiles(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// output is a stream that a test can wait on.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func newOutput() *output { return &output{written: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.written <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find waits for pattern and returns its first group. It fails the test if the program ends
// before.
func (o *output) find(t *testing.T, pattern string, ended chan error) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for {
		if m := re.FindStringSubmatch(o.String()); m != nil {
			return m[1]
		}
		select {
		case <-o.written:
		case err := <-ended:
			ended <- err // for the cleanup
			t.Fatalf("ended, with %v, before it wrote %q; it wrote %q", err, pattern, o)
		}
	}
}

// response is a fully read HTTP response.
type response struct {
	status int
	header http.Header
	body   string
}

// get asks for path; headers are pairs of a name and a value.
func (d *demo) get(path string, headers ...string) response {
	d.t.Helper()
	return d.send(http.MethodGet, path, headers...)
}

// getWhenBack gets path until its rate limit is decided, because a probe must first find that
// a server is back.
func (d *demo) getWhenBack(path string) response {
	d.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if r := d.get(path); r.header.Get("X-RateLimit-Used") != "" || time.Now().After(deadline) {
			return r
		}
	}
}

func (d *demo) send(method, path string, headers ...string) response {
	d.t.Helper()
	r, err := d.try(method, path, headers...)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// operator asks the operator's listener for path.
func (d *demo) operator(path string) response {
	d.t.Helper()
	r, err := d.ask(http.MethodGet, d.debug+path)
	if err != nil {
		d.t.Fatal(err)
	}
	return r
}

// try is send for goroutines, which must not end the test.
func (d *demo) try(method, path string, headers ...string) (response, error) {
	return d.ask(method, d.url+path, headers...)
}

func (d *demo) ask(method, url string, headers ...string) (response, error) {
	request, err := http.NewRequest(method, url, nil)
	if err != nil {
		return response{}, err
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	r, err := d.client.Do(request)
	if err != nil {
		return response{}, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return response{r.StatusCode, canonical(r.Header), string(body)}, err
}

func canonical(h http.Header) http.Header {
	c := http.Header{}
	for name, values := range h {
		for _, v := range values {
			c.Add(name, v)
		}
	}
	return c
}

// rates returns the values of the rate headers, as "used/limit resource".
func (r response) rates() string {
	return fmt.Sprintf("%s/%s %s", r.header.Get("X-RateLimit-Used"), r.header.Get("X-RateLimit-Limit"), r.header.Get("X-RateLimit-Resource"))
}

func (r response) String() string {
	return fmt.Sprintf("%d %s %s", r.status, r.rates(), strings.TrimSpace(r.body))
}
