package middleware_test

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The request as other handlers see it.

func TestTemporaryFilesOfUploadsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	th, _ := newThrottler()
	outer := limit(th, policy("outer", per(100, time.Minute)), nil)
	inner := limit(th, policy("inner", per(100, time.Minute)), nil)
	s := start(t, false, outer(inner(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1 << 10); err != nil {
			t.Error(err)
		}
		if files, _ := filepath.Glob(filepath.Join(dir, "multipart-*")); len(files) != 1 {
			t.Errorf("files during the request: %v", files)
		}
		if r.URL.Path == "/panic" {
			panic(http.ErrAbortHandler)
		}
	}))), nil)
	for _, path := range []string{"/", "/panic"} {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		_, _ = must(form.CreateFormFile("file", "big")).Write(make([]byte, 1<<20))
		form.Close()
		res, err := s.Client().Post(s.URL+path, form.FormDataContentType(), &body)
		if err == nil {
			res.Body.Close()
		}
		if path == "/" {
			if err != nil {
				t.Fatal(err)
			}
			s.Client().CloseIdleConnections()
			s.Close() // net/http has finished with the request
			if files, _ := os.ReadDir(dir); len(files) != 0 {
				t.Errorf("%d files are left", len(files))
			}
			return
		}
	}
}

func TestOuterMiddlewaresSeeWhatTheHandlerSetInTheRequest(t *testing.T) {
	th, _ := newThrottler()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /repos/{owner}/{path...}", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("a") != "b" || r.PathValue("owner") != "acme" {
			t.Errorf("form %v, owner %q", r.Form, r.PathValue("owner"))
		}
		if strings.Contains(r.URL.Path, "panic") {
			panic("x")
		}
	})
	outer := limit(th, policy("outer", per(100, time.Minute)), nil)
	inner := limit(th, policy("inner", per(100, time.Minute)), nil)
	h := outer(inner(mux))
	for _, path := range []string{"/repos/acme/x/y", "/repos/acme/panic/y"} {
		r := httptest.NewRequest("POST", path, strings.NewReader("a=b"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		func() {
			defer func() { _ = recover() }()
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		if r.Pattern != "POST /repos/{owner}/{path...}" || r.PathValue("owner") != "acme" || !strings.HasSuffix(r.PathValue("path"), "/y") || r.Form.Get("a") != "b" || r.PostForm.Get("a") != "b" {
			t.Errorf("outside: pattern %q, owner %q, path %q, form %v", r.Pattern, r.PathValue("owner"), r.PathValue("path"), r.Form)
		}
	}
}

func TestARequestThatIsNotChargedIsNotCopied(t *testing.T) {
	th, _ := newThrottler()
	r := httptest.NewRequest("GET", "/", nil)
	w := httptest.NewRecorder()
	must(newMiddleware(th, charging(), nil))(http.HandlerFunc(func(w2 http.ResponseWriter, r2 *http.Request) {
		if w2 != w || r2 != r {
			t.Error("a request without charges gets a copy, or a wrapped writer")
		}
	})).ServeHTTP(w, r)
}

func TestOnlyTheOutermostWraps(t *testing.T) {
	th, _ := newThrottler()
	outer := limit(th, policy("outer", per(100, time.Minute)), nil)
	inner := limit(th, policy("inner", per(100, time.Minute)), nil)
	get(outer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner(http.HandlerFunc(func(w2 http.ResponseWriter, _ *http.Request) {
			if w2 != w {
				t.Error("the inner middleware wrapped once more")
			}
		})).ServeHTTP(w, r)
	})))
}

func TestTrailersOfTheRequestArrive(t *testing.T) {
	th, _ := newThrottler()
	s := start(t, false, limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		fmt.Fprint(w, r.Trailer.Get("Sum"))
	})), nil)
	for _, announce := range []string{"", "Trailer: Sum\r\n"} {
		conn := s.dial(t, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"+announce+"\r\n1\r\na\r\n0\r\nSum: 1\r\n\r\n")
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.HasSuffix(string(answer), "\r\n\r\n1") {
			t.Errorf("announced %q: %q, %v", announce, answer, err)
		}
	}
}

// http.MaxBytesReader closes the connection of a client that sends too much.
func TestMaxBytesReaderClosesTheConnection(t *testing.T) {
	th, _ := newThrottler()
	s := start(t, false, limit(th, policy("core", per(100, time.Minute)), nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/limited" {
			r.Body = http.MaxBytesReader(w, r.Body, 10)
		}
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, "too large", http.StatusRequestEntityTooLarge)
			return
		}
		http.Error(w, "no", http.StatusBadRequest)
	})), nil)
	for path, closes := range map[string]bool{"/limited": true, "/": false} {
		res, err := s.Client().Post(s.URL+path, "text/plain", strings.NewReader(strings.Repeat("x", 1000)))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.Close != closes {
			t.Errorf("%s: status %d, the connection closes: %v, want %v", path, res.StatusCode, res.Close, closes)
		}
	}
}
