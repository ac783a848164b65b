package redisbackend

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/internal/invalid"
)

// ParseURL returns the options of [NewClient] that a URL states:
//
//	redis://HOST:PORT                           a server
//	rediss://USER:PASSWORD@HOST:PORT/DB         a server, with TLS
//	unix:///PATH?db=0                           a server, through its socket
//	redis://HOST:PORT?addr=HOST:PORT            a Redis Cluster, of these nodes and more
//	redis://HOST:PORT?cluster=true              a Redis Cluster
//	redis://HOST:PORT?master_name=NAME          a Sentinel master name
//
// A Cluster and a master name may have any number of addr. The default port is 6379, or
// 26379 for a Sentinel. User and password are the servers', not the Sentinels'. Reserved
// characters must be percent-encoded, such as a slash in a password as %2F.
//
// Errors wrap quota.ErrInvalid. They don't quote the URL, which may contain a password.
func ParseURL(text string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(text)
	if err == nil && u.Scheme == "unix" {
		return parseSocket(u)
	}
	if err != nil || u.Host == "" || u.Opaque != "" || u.Fragment != "" {
		return nil, invalid.Errorf("redisbackend: the URL cannot be read; it must be redis://HOST:PORT or rediss://USER:PASSWORD@HOST:PORT, with a URL's reserved characters percent-encoded")
	}
	o := new(redis.UniversalOptions)
	switch u.Scheme {
	case "redis":
	case "rediss":
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	default:
		return nil, invalid.Errorf("redisbackend: the URL's scheme is unknown; it must be redis, with TLS rediss, or unix")
	}
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	if path := strings.Trim(u.Path, "/"); path != "" {
		db, err := strconv.ParseUint(path, 10, 31)
		if err != nil {
			return nil, invalid.Errorf("redisbackend: the URL's path is no number; it must be the number of a database, such as /0")
		}
		o.DB = int(db)
	}
	if err := parseQuery(o, u); err != nil {
		return nil, err
	}
	return o, nil
}

// parseSocket returns the options of a URL with the path of a socket.
func parseSocket(u *url.URL) (*redis.UniversalOptions, error) {
	query, err := url.ParseQuery(u.RawQuery)
	db, numErr := strconv.ParseUint(cmp.Or(query.Get("db"), "0"), 10, 31)
	if query.Del("db"); err != nil || numErr != nil || u.Host != "" || len(u.Path) < 2 || u.Fragment != "" || len(query) > 0 {
		return nil, invalid.Errorf("redisbackend: the URL of a socket is wrong; it must be unix:///PATH or unix://USER:PASSWORD@/PATH?db=0, with a path such as /run/redis.sock and a URL's reserved characters percent-encoded")
	}
	o := &redis.UniversalOptions{Addrs: []string{u.Path}, DB: int(db), Username: u.User.Username()}
	o.Password, _ = u.User.Password()
	return o, nil
}

// parseQuery sets the addresses of u in o, and the options in its query.
func parseQuery(o *redis.UniversalOptions, u *url.URL) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errQuery
	}
	for key, values := range query {
		switch {
		case key == "addr":
		case key == "master_name" && len(values) == 1 && values[0] != "":
			o.MasterName = values[0]
		case key == "cluster" && len(values) == 1 && values[0] == "true":
			o.IsClusterMode = true
		default:
			return errQuery
		}
	}
	port := "6379"
	if o.MasterName != "" {
		if o.IsClusterMode {
			return errQuery
		}
		port = "26379"
	}
	for _, addr := range append([]string{u.Host}, query["addr"]...) {
		host, err := url.Parse("//" + addr)
		if err != nil || host.Host != addr {
			return errQuery
		}
		number, err := strconv.ParseUint(cmp.Or(host.Port(), port), 10, 16)
		if err != nil || number == 0 || !hostText.MatchString(addr) {
			return invalid.Errorf("redisbackend: the URL's host is wrong; it must be a name or an address, IPv6 in brackets, and as needed a port from 1 to 65535, such as redis.internal:6379")
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(host.Hostname(), strconv.FormatUint(number, 10)))
	}
	return nil
}

// hostText is a name or an address, and perhaps a port.
var hostText = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?$`)

var errQuery = invalid.Errorf("redisbackend: the URL's query is wrong; it must have no more than addr=HOST:PORT, once or more, and cluster=true or master_name=NAME, once")
