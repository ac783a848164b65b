package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// control lets the demo's page stop and continue servers, and write the file of flags. It
// listens on a Unix socket in a directory that only this user can enter.
type control struct {
	flags   string // the file
	servers []*controlled

	mu sync.Mutex // guards the file, and stopped of each server
}

type controlled struct {
	name   string
	server interface {
		Pause()
		Resume()
	} // started by testserver
	stopped bool
}

// listen serves at a Unix socket until the returned function is called.
func (c *control) listen(socket string) (closeAll func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /page/stack", c.get)
	mux.HandleFunc("POST /page/stack/flag", c.postFlag)
	mux.HandleFunc("POST /page/stack/server", c.postServer)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }() // ends with the Close below
	return func() { _ = server.Close() }, nil
}

// answer is the state of the flags and the servers.
type answer struct {
	Percent *int           `json:"percent"` // of clients on Memcached; null if the file has been edited into another form
	Servers []serverAnswer `json:"servers"`
}

type serverAnswer struct {
	Name    string `json:"name"`
	Stopped bool   `json:"stopped"`
}

func (c *control) get(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer(w)
}

func (c *control) answer(w http.ResponseWriter) {
	a := answer{Percent: c.percent()}
	for _, s := range c.servers {
		a.Servers = append(a.Servers, serverAnswer{s.name, s.stopped})
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(w).Encode(a) // the client may have left
}

// postFlag moves a percentage of the clients to Memcached.
func (c *control) postFlag(w http.ResponseWriter, r *http.Request) {
	percent, err := strconv.Atoi(r.FormValue("percent"))
	if err != nil || percent < 0 || percent > 100 {
		http.Error(w, fmt.Sprintf("percent is %q; it must be from 0 to 100", r.FormValue("percent")), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeFlags(percent); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.answer(w)
}

// postServer stops or continues a server.
func (c *control) postServer(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.servers {
		if s.name != r.FormValue("name") {
			continue
		}
		stopped := r.FormValue("stopped") == "true"
		switch {
		case stopped && !s.stopped:
			s.server.Pause()
		case !stopped && s.stopped:
			s.server.Resume()
		}
		s.stopped = stopped
		c.answer(w)
		return
	}
	http.Error(w, fmt.Sprintf("there is no server %q", r.FormValue("name")), http.StatusNotFound)
}

var percentOf = regexp.MustCompile(`(?m)^memcached: *(\d{1,3})$`)

// writeFlags replaces the file by a rename, because the demo may read it at any time.
func (c *control) writeFlags(percent int) error {
	next := c.flags + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "memcached: %d\n", percent), 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.flags)
}

// percent returns the percentage in the file, or nil if a person has given the file another
// form.
func (c *control) percent() *int {
	text, err := os.ReadFile(c.flags)
	if err != nil {
		return nil
	}
	m := percentOf.FindSubmatch(text)
	if m == nil {
		return nil
	}
	percent, _ := strconv.Atoi(string(m[1]))
	return &percent
}
