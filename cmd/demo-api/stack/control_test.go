package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

func TestControl(t *testing.T) {
	redis := testserver.Redis(t)
	c := &control{flags: filepath.Join(t.TempDir(), "flags.yaml"), servers: []*controlled{{name: "a", server: redis}}}
	if err := c.writeFlags(0); err != nil {
		t.Fatal(err)
	}
	post := func(do http.HandlerFunc, query string, status int) (a answer) {
		t.Helper()
		w := httptest.NewRecorder()
		do(w, httptest.NewRequest("POST", "/?"+query, nil))
		if w.Code != status {
			t.Fatalf("%s: got %d, %s", query, w.Code, w.Body)
		}
		if status == http.StatusOK {
			if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
		}
		return a
	}

	if a := post(c.postFlag, "percent=35", 200); *a.Percent != 35 || a.Servers[0].Stopped {
		t.Errorf("got %+v, want 35 percent, and nothing stopped", a)
	}
	for _, query := range []string{"percent=101", "percent=-1", "percent=", ""} {
		post(c.postFlag, query, 400)
	}
	if a := post(c.get, "", 200); *a.Percent != 35 {
		t.Errorf("got %d percent, want 35", *a.Percent)
	}
	if err := os.WriteFile(c.flags, []byte("redis: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if a := post(c.get, "", 200); a.Percent != nil {
		t.Errorf("got %d percent of a file that a person wrote", *a.Percent)
	}

	if a := post(c.postServer, "name=a&stopped=true", 200); !a.Servers[0].Stopped || answers(redis, 200*time.Millisecond) {
		t.Errorf("got %+v; want a server that does not answer", a)
	}
	if a := post(c.postServer, "name=a&stopped=false", 200); a.Servers[0].Stopped || !answers(redis, 20*time.Second) {
		t.Errorf("got %+v; want a server that answers", a)
	}
	post(c.postServer, "name=b&stopped=true", 404)
}

// answers reports whether a server answers a PING within that time.
func answers(s *testserver.RedisServer, within time.Duration) bool {
	conn, err := net.Dial("tcp", s.Addr) // the system accepts it for a stopped process
	if err != nil {
		return false
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("PING\r\n"))
	_ = conn.SetReadDeadline(time.Now().Add(within))
	n, _ := conn.Read(make([]byte, 16))
	return n > 0
}
