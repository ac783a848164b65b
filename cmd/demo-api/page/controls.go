package page

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
)

// controls passes requests on to the program that listens at a Unix socket. It answers this
// machine alone, because that program stops servers.
func controls(socket string) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "stack"
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives: true,
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !local(r) {
			http.Error(w, "only for browsers on this machine, at a loopback address", http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

// local reports whether r was sent on this machine, to a loopback address, and not through a
// proxy. A page from elsewhere, with a name that was made to resolve to this machine, sends
// its own name as the host.
func local(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	for _, forwarded := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "Via"} {
		if r.Header.Get(forwarded) != "" {
			return false
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
