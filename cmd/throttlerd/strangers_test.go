package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/testkit/testserver"
)

// Clients that are no proxies, and clients that send nothing, take the connections of no other
// port, nor the proxies' connections.
func TestStrangersTakeNoPortsAway(t *testing.T) {
	auth, health := testserver.FreeAddr(t), testserver.FreeAddr(t)
	text := "backend: memory\npolicies: {api: 60 per 1h}\nforward_auth: {listen: '" + auth + "', trusted_proxies: [127.0.0.1/32], rules: [{charge: [api by ip]}]}\n"
	_, port, _ := net.SplitHostPort(health)
	serving(t, text, "PORT="+port, "RUNTIME_ROOT="+t.TempDir())
	get := func(url string) error {
		r, _ := http.NewRequest(http.MethodGet, url, nil)
		for name, value := range map[string]string{"Method": "GET", "Host": "example.com", "Uri": "/", "For": "192.0.2.1"} {
			r.Header.Set("X-Forwarded-"+name, value)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, response.Status)
		}
		return nil
	}
	for _, url := range []string{"http://" + auth + "/", "http://" + health + "/healthz"} {
		eventually(t, func() error { return get(url) })
	}
	stranger := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 64 {
		c, err := stranger.Dial("tcp", auth)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX: ") // and no more
	}
	for _, url := range []string{"http://" + auth + "/", "http://" + health + "/healthz"} {
		if err := get(url); err != nil {
			t.Error(err)
		}
	}
	c, err := stranger.Dial("tcp", auth)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if got, err := io.ReadAll(c); len(got) > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("one stranger more: %q, %v; want a closed connection", got, err)
	}
}
