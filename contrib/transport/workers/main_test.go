package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// The page shows the program, and three processes of it fetch all pages, although the API
// refuses two of them.
func TestProgram(t *testing.T) {
	page, err := os.ReadFile("../../../docs/howto/waiting.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if _, shown, _ := bytes.Cut(program, []byte("package main")); !bytes.Contains(page, append([]byte("package main"), shown...)) {
		t.Error("docs/howto/waiting.md shows another program")
	}
	if lines := bytes.Count(program, []byte("\n")); lines > 60 {
		t.Errorf("the program has %d lines", lines)
	}
	var mu sync.Mutex
	served, sentAway := make(map[string]int), 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if len(served) == 4 && sentAway < 2 {
			sentAway++
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		served[r.URL.Path]++
	}))
	defer api.Close()
	binary := filepath.Join(t.TempDir(), "workers")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	redis := testserver.Redis(t).Addr
	var processes sync.WaitGroup
	for i := range 3 {
		processes.Go(func() {
			args := []string{"-redis", redis}
			for k := range 5 {
				args = append(args, fmt.Sprintf("%s/%d/%d", api.URL, i, k))
			}
			out, err := exec.CommandContext(t.Context(), binary, args...).CombinedOutput()
			if n := strings.Count(string(out), "200 OK"); err != nil || n != 5 {
				t.Errorf("%v: %d pages, want 5:\n%s", err, n, out)
			}
		})
	}
	processes.Wait()
	if len(served) != 15 || sentAway != 2 {
		t.Errorf("served %v, and sent away %d", served, sentAway)
	}
}
