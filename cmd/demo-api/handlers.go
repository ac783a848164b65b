package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

const (
	maxSlow   = 5 * time.Second
	maxRows   = 2000
	rowsAUnit = 100
)

// getRepo answers in the shape of GitHub's API, so that GitHub's clients can read the answer,
// and with an ETag. A client that sends the ETag back gets a 304, which the middleware doesn't
// charge.
func getRepo(w http.ResponseWriter, r *http.Request) {
	owner, name := chi.URLParam(r, "owner"), chi.URLParam(r, "name")
	body := encode(map[string]any{
		"owner":       map[string]string{"login": owner},
		"name":        name,
		"full_name":   owner + "/" + name,
		"description": "made up by the demo",
	})
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(body)))
	w.Header().Set("Cache-Control", "private, no-cache")            // kept by the client, which revalidates each time
	r.Header.Del("Range")                                           // ServeContent's 416 would drop Cache-Control, and JSON has no parts
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body)) // handles all forms of If-None-Match
}

// getFeed is charged to an organisation and to the caller as its member.
func getFeed(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"org": chi.URLParam(r, "org"), "feed": []string{}})
}

// durationOf returns the duration in r, or usual. If it is invalid, durationOf answers r.
func durationOf(w http.ResponseWriter, r *http.Request, usual time.Duration) (d time.Duration, ok bool) {
	text := r.FormValue("for")
	if text == "" {
		return usual, true
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxSlow {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("for is %q; it must be a duration from 0s to %v, such as 500ms", text, maxSlow))
		return 0, false
	}
	return d, true
}

// getSlow takes a while, so that many requests can be in flight at once.
func getSlow(w http.ResponseWriter, r *http.Request) {
	wait, ok := durationOf(w, r, 500*time.Millisecond)
	if !ok {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		writeJSON(w, http.StatusOK, map[string]string{"slept": wait.String()})
	case <-r.Context().Done(): // the client has left
	}
}

// getStream sends a line every 100 ms, and is in flight until it ends.
func getStream(w http.ResponseWriter, r *http.Request) {
	lasts, ok := durationOf(w, r, 2*time.Second)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lasts)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	next := time.NewTicker(100 * time.Millisecond)
	defer next.Stop()
	for i := 0; ; i++ {
		_, _ = fmt.Fprintln(w, i)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-next.C:
		case <-ctx.Done():
			return
		}
	}
}

// maxTurn is how long a request waits for its turn at another API.
const maxTurn = 3 * time.Second

// waitsFor returns a handler that calls another API, and takes turns with all other processes.
func waitsFor(t *throttler.Throttler, upstream *throttler.Policy) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), maxTurn)
		defer cancel()
		began := time.Now()
		switch _, err := t.Wait(ctx, upstream.Charge("api.example.com")); {
		case err == nil: // the call would be here
			writeJSON(w, http.StatusOK, map[string]string{"waited": time.Since(began).Round(time.Millisecond).String()})
		case errors.Is(err, context.DeadlineExceeded):
			w.Header().Set("Retry-After", strconv.Itoa(int(maxTurn/time.Second)))
			writeError(w, http.StatusServiceUnavailable, fmt.Sprintf("more requests than %v allow wait for the other API", maxTurn))
		default:
			writeError(w, http.StatusServiceUnavailable, "the turns at the other API are not known at the moment")
		}
	}
}

// getExport costs as much as its rows, which is known only at its end: the request is charged
// 1 at first, and the rest is settled.
func getExport(w http.ResponseWriter, r *http.Request) {
	rows := 0
	if text := r.FormValue("rows"); text != "" {
		var err error
		if rows, err = strconv.Atoi(text); err != nil || rows < 0 || rows > maxRows {
			writeError(w, http.StatusBadRequest, fmt.Sprintf("rows is %q; it must be a whole number from 0 to %d", text, maxRows))
			return
		}
	}
	var body bytes.Buffer
	body.WriteString("row,square\n")
	for i := range rows {
		fmt.Fprintf(&body, "%d,%d\n", i, i*i)
	}
	_ = middleware.SetCost(r, int64(1+rows/rowsAUnit)) // fails only if the request was not charged
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	_, _ = body.WriteTo(w) // fails only if the client has left
}

func getSearch(w http.ResponseWriter, r *http.Request) {
	q := r.FormValue("q")
	if q == "" {
		writeError(w, http.StatusBadRequest, "q is missing; it must be the words to search for, such as /search?q=weir")
		return
	}
	type item struct {
		FullName string `json:"full_name"`
	}
	items := []item{{"acme/" + q}, {"acme/" + q + "-tools"}}
	writeJSON(w, http.StatusOK, map[string]any{"total_count": len(items), "items": items})
}

// postToken answers in the shape of an API that issues tokens. The demo does not remember the
// token: otherwise every call would get a fresh quota.
func postToken(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusCreated, map[string]string{
		"token": "demo_" + rand.Text(),
		"note":  "made up by the demo, which does not accept it",
	})
}

func getHealth(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok\n") // fails only if the client has left
}

// uncached forbids caches to keep a response, unless its handler says otherwise. A shared
// cache would replay one caller's rate headers to another.
func uncached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Vary", "Authorization")
		next.ServeHTTP(w, r)
	})
}

func notFound(w http.ResponseWriter, _ *http.Request) {
	writeError(w, http.StatusNotFound, "no such route; demo-api -h lists them")
}

func methodNotAllowed(w http.ResponseWriter, r *http.Request) {
	router := chi.RouteContext(r.Context()).Routes
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		if router.Match(chi.NewRouteContext(), method, r.URL.Path) {
			w.Header().Add("Allow", method) // chi sets it in its own answer only
		}
	}
	writeError(w, http.StatusMethodNotAllowed, r.Method+" is not allowed here; "+strings.Join(w.Header()["Allow"], ", ")+" is")
}

func writeError(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]string{"message": message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(encode(v)) // fails only if the client has left
}

// encode returns v as indented JSON. It panics if v can't be encoded; maps of strings always
// can.
func encode(v any) []byte {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(err)
	}
	return append(text, '\n')
}
