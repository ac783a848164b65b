package forwardauth

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// attack uses up the limit of all requests, and then sends what may make a proxy's question
// fail. None of it may reach the application.
func (p *proxied) attack(t *testing.T) {
	t.Helper()
	for range 60 {
		if r, body := p.send(t, http.MethodGet, "/x"); r.StatusCode != http.StatusOK {
			t.Fatalf("%s %s", r.Status, body)
		}
	}
	if r, _ := p.send(t, http.MethodGet, "/x"); r.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("request 61: %s", r.Status)
	}
	// A health check without a host is answered by the application, because /healthz is free.
	if got := p.sendRaw("GET /healthz HTTP/1.0\r\n\r\n"); !strings.Contains(got, " 200 ") || !strings.HasSuffix(got, "the application") {
		t.Errorf("HTTP/1.0 without a host: %q", got)
	}
	before := p.reached.Load()
	many := func(n, size int) string {
		var all strings.Builder
		for i := range n {
			fmt.Fprintf(&all, "X-H%d: %s\r\n", i, strings.Repeat("x", size))
		}
		return all.String()
	}
	login := func(headers, body string) string {
		return "POST /login HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n" + headers + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
	}
	control := func(c string) string { return login("X-A: a"+c+"b\r\n", "a=b") }
	for name, request := range map[string]string{
		"a control character":               control("\x01"),
		"a NUL":                             control("\x00"),
		"DEL":                               control("\x7f"),
		"a carriage return":                 control("\r"),
		"a tab":                             control("\t"),
		"a byte of no text":                 control("\xff"),
		"a control character, then much":    login("X-A: \x01\r\n"+many(3, 7000), "a=b"),
		"a control character after much":    login(many(3, 7000)+"X-A: \x01\r\n", "a=b"),
		"a control character, a large body": login("X-A: \x01\r\n", strings.Repeat("x", 2<<20)),
		"a line without a colon":            login("nothing\r\n", "a=b"),
		"a line without a colon, then much": login("nothing\r\n"+many(3, 7000), "a=b"),
		"a name with a space":               login("X A: 1\r\n"+many(3, 7000), "a=b"),
		"a name of other characters":        login("X(A): 1\r\nX\xff: 1\r\n"+many(3, 7000), "a=b"),
		"a continued line":                  login("X-A: 1\r\n 2\r\n", "a=b"),
		"an empty name":                     login(": 1\r\n", "a=b"),
		"a large header":                    login("X-A: "+strings.Repeat("x", 7000)+"\r\n", "a=b"),
		"a header of 900 kB":                login("X-A: "+strings.Repeat("x", 900_000)+"\r\n", "a=b"),
		"a header of 2 MB":                  login("X-A: "+strings.Repeat("x", 2<<20)+"\r\n", "a=b"),
		"headers of 28 kB":                  login(many(4, 7000), "a=b"),
		"headers of 1.1 MB":                 login(many(160, 7000), "a=b"),
		"many headers":                      login(many(500, 1), "a=b"),
		"very many headers":                 login(many(5000, 1), "a=b"),
		"the proxy's own headers":           login("X-Forwarded-Uri: /healthz\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Host: h\r\nX-Forwarded-For: 192.0.2.1\r\nX-Original-Uri: /healthz\r\n", "a=b"),
		"the proxy's headers, misspelled":   login("X_Forwarded_Uri: /healthz\r\nx-forwarded-uri : /healthz\r\nX-Forwarded-Uri: /\r\n", "a=b"),
		"headers of the connection":         login("Connection: X-Forwarded-Uri, X-Forwarded-For, X-Forwarded-Method, X-Forwarded-Host\r\n", "a=b"),
		"a body of 2 MB":                    login("", strings.Repeat("x", 2<<20)),
		"a body of 12 MB":                   login("", strings.Repeat("x", 12<<20)),
		"two lengths":                       login("Content-Length: 7\r\n", "a=b"),
		"a length of letters":               "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: abc\r\n\r\na=b",
		"a length below zero":               "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: -1\r\n\r\na=b",
		"a huge length":                     "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 99999999999999999999\r\n\r\na=b",
		"a length and chunks":               login("Transfer-Encoding: chunked\r\n", "3\r\na=b\r\n0\r\n\r\n"),
		"chunks":                            "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na=b\r\n0\r\n\r\n",
		"large chunks":                      "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n" + strings.Repeat("x", 2<<20) + "\r\n0\r\n\r\n",
		"chunks with a trailer":             "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTrailer: X-Forwarded-Uri\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na=b\r\n0\r\nX-Forwarded-Uri: /healthz\r\n\r\n",
		"invalid chunks":                    "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"another transfer encoding":         "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: gzip\r\n\r\na=b",
		"Expect":                            login("Expect: 100-continue\r\n", "a=b"),
		"Expect of something else":          login("Expect: nothing\r\n", "a=b"),
		"Upgrade":                           login("Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n", "a=b"),
		"Upgrade to HTTP/2":                 login("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", "a=b"),
		"TE":                                login("TE: trailers\r\nConnection: TE\r\n", "a=b"),
		"Range and conditions":              login("Range: bytes=0-0\r\nIf-None-Match: *\r\nIf-Match: \"x\"\r\nIf-Modified-Since: Thu, 01 Jan 2099 00:00:00 GMT\r\n", "a=b"),
		"Proxy-Authorization":               login("Proxy-Authorization: Basic eDp5\r\nProxy-Connection: keep-alive\r\n", "a=b"),
		"HTTP/1.0":                          "POST /login HTTP/1.0\r\nContent-Length: 3\r\n\r\na=b",
		"HTTP/1.0 with a host":              "POST /login HTTP/1.0\r\nHost: h\r\nContent-Length: 3\r\n\r\na=b",
		"HTTP/0.9":                          "GET /login\r\n",
		"HTTP/1.9":                          "POST /login HTTP/1.9\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"HTTP/2.0":                          "POST /login HTTP/2.0\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"no host":                           "POST /login HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"an empty host":                     "POST /login HTTP/1.1\r\nHost:\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"two hosts":                         "POST /login HTTP/1.1\r\nHost: h\r\nHost: g\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"a bad host":                        "POST /login HTTP/1.1\r\nHost: a b/\x01\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"a host with a path":                "POST /login HTTP/1.1\r\nHost: h/healthz\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"a host of 7 kB":                    "POST /login HTTP/1.1\r\nHost: " + strings.Repeat("h.", 3500) + "\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"an absolute URI":                   "POST http://h/login HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"an absolute URI without a path":    "GET http://h HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
		"an absolute URI with a query":      "GET http://h?/healthz HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
		"another scheme":                    "GET ftp://h/healthz/../x HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
		"no path":                           "GET ?/healthz HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
		"a path without a slash":            "GET healthz HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
		"OPTIONS *":                         "OPTIONS * HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n",
		"CONNECT":                           "CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
		"CONNECT of a path":                 "CONNECT /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"TRACE":                             "TRACE /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"another method":                    "FROB /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a method in small letters":         "post /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"a method of other characters":      "P_-!ST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\na=b",
		"a method of 7 kB":                  strings.Repeat("X", 7000) + " /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a path of 7 kB":                    "GET /" + strings.Repeat("x", 7000) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a path of 70 kB":                   "GET /" + strings.Repeat("x", 70_000) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a query of 7 kB":                   "GET /x?" + strings.Repeat("%00/", 1700) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a hostile path":                    "GET /" + strings.Repeat("%2f..;%5c", 700) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a NUL in the path":                 "GET /healthz%00 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"control characters in the path":    "GET /healthz\x01\x7f HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a space in the path":               "GET /healthz x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"bytes above ASCII in the path":     "GET /\xff\xfe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a fragment":                        "GET /healthz#/../login HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"an invalid escape":                 "GET /%zz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a free path for some servers":      "GET /search/..%2fhealthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
		"a second request in a body":        login("", "GET /x HTTP/1.1\r\nHost: h\r\n\r\n"),
		"pipelined requests":                "GET /x HTTP/1.1\r\nHost: h\r\n\r\nGET /x HTTP/1.1\r\nHost: h\r\nX-A: \x01\r\nConnection: close\r\n\r\n",
		"a body that ends early":            "POST /login HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 30\r\n\r\na=b",
	} {
		for range 3 {
			answer := p.sendRaw(request)
			if after := p.reached.Load(); after != before {
				t.Errorf("%s reached the application: %.200q", name, answer)
				before = after
			}
		}
	}
}

// sendRaw sends bytes and ends sending, and returns the answer as far as there is one.
func (p *proxied) sendRaw(request string) string {
	c, err := net.Dial("tcp", p.addr)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second)) // a proxy may wait for more
	go func() { _, _ = io.WriteString(c, request) }()  // a proxy may answer before it has read all
	answer, err := io.ReadAll(c)
	if err != nil {
		return string(answer) + err.Error()
	}
	return string(answer)
}
