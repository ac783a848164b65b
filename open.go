package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	memcachedbackend "github.com/weir-go/weir/backend/memcached"
	memorybackend "github.com/weir-go/weir/backend/memory"
	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/internal/invalid"
	"github.com/weir-go/weir/internal/receiptkey"
	"github.com/weir-go/weir/observe"
	weirlog "github.com/weir-go/weir/observe/log"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// Open returns a Throttler that counts at urls:
//
//	memory:                             this process, as New
//	redis://HOST:PORT                   a Redis server
//	rediss://USER:PASSWORD@HOST:PORT/0  a Redis server, with TLS
//	unix:///run/redis.sock?db=0         a Redis server, through its socket
//	redis://HOST:PORT?cluster=true      a Redis Cluster
//	redis://HOST:PORT?master_name=NAME  the primary of a Sentinel's master name
//	memcached://HOST:PORT               a Memcached server
//
// Several URLs with spaces between them are shards, named "a", "b" and so on: append new ones at
// the end, or keys change their shard. ?prefix=staging: begins all keys, so that two environments
// can share a server. [redisbackend.ParseURL] describes the rest.
//
// The Throttler corrects its clock by Redis servers' clocks unless options, which may be nil,
// has a Clock. Its [throttler.Throttler.Close] closes what Open opened. Open waits for no server:
// the log says which do not answer. An error wraps throttler.ErrInvalid, and quotes no URL.
func Open(urls string, options *throttler.Options) (*throttler.Throttler, error) {
	o := *cmp.Or(options, new(throttler.Options))
	if _, err := receiptkey.NewKey(o.ReceiptKey); err != nil {
		return nil, fmt.Errorf("weir: Open: Options.%w", err)
	}
	shards, err := parse(urls)
	if err != nil {
		return nil, err
	}
	var backend driver.Backend
	c := closers{o.OnClose}
	switch shards[0].kind {
	case "memory":
		backend = memorybackend.NewDefault()
	case "memcached":
		backend, err = openMemcached(shards, &c)
	default:
		backend, err = openRedis(shards, &o, &c)
	}
	if err != nil {
		_ = c[1:].close()
		return nil, err
	}
	o.OnClose = c.close
	return throttler.New(backend, &o), nil
}

// closers close what Open opens. Nil ones do nothing.
type closers []func() error

// close calls them, the last first.
func (c closers) close() error {
	var errs []error
	for _, f := range slices.Backward(c) {
		if f != nil {
			errs = append(errs, f())
		}
	}
	return errors.Join(errs...)
}

// shard is what a URL says.
type shard struct {
	name    string // such as "a"
	kind    string // "memory", "redis" or "memcached"
	prefix  string
	options *redis.UniversalOptions // of a Redis server; otherwise only Addrs
}

const maxShards = 26 // one for each letter

// schemes are the kinds of stores by the schemes of their URLs.
var schemes = map[string]string{"memory": "memory", "redis": "redis", "rediss": "redis", "unix": "redis", "memcached": "memcached"}

const schemesMustBe = "it must begin with redis://, rediss:// for TLS, unix:// for a socket, or memcached://, or be memory: for the memory of this process"

// parse returns what the URLs in text say. Errors don't quote them, for they may have passwords.
func parse(text string) ([]shard, error) {
	urls := strings.Fields(text)
	switch {
	case len(urls) == 0:
		return nil, invalid.Errorf("weir: Open: the URL is empty; %s", schemesMustBe)
	case len(urls) > maxShards:
		return nil, invalid.Errorf("weir: Open: there are %d URLs; there may be %d, and redisbackend.New takes more shards", len(urls), maxShards)
	}
	shards := make([]shard, len(urls))
	servers := make(map[string]int)
	for i, text := range urls {
		label := fmt.Sprintf("URL %d of %d", i+1, len(urls))
		s, problem := parseShard(text)
		switch {
		case problem != "" && len(urls) == 1:
			return nil, invalid.Errorf("weir: Open: %s", problem)
		case problem != "":
			return nil, invalid.Errorf("weir: Open: %s: %s", label, problem)
		}
		s.name = string(rune('a' + i))
		switch first := &shards[0]; {
		case i == 0:
		case s.kind != first.kind:
			return nil, invalid.Errorf("weir: Open: %s is for %s, and the first for %s; shards must be servers of one kind", label, s.kind, first.kind)
		case s.kind == "memory":
			return nil, invalid.Errorf("weir: Open: memory: is there twice; a process has one memory, without shards")
		case s.prefix != first.prefix:
			return nil, invalid.Errorf("weir: Open: %s has another prefix than the first; it must be the same for all shards", label)
		}
		for _, addr := range s.options.Addrs {
			server := s.options.MasterName + "\n" + canonical(addr)
			if j, exists := servers[server]; exists && j != i {
				return nil, invalid.Errorf("weir: Open: %s and URL %d are one server; each shard needs a server of its own", label, j+1)
			}
			servers[server] = i
		}
		shards[i] = s
	}
	return shards, nil
}

// canonical returns addr in lower case, with one name for this machine.
func canonical(addr string) string {
	host, port, err := net.SplitHostPort(strings.ToLower(addr))
	if err == nil && !strings.HasPrefix(addr, "/") {
		addr = net.JoinHostPort(host, port)
	}
	if err != nil || host != "localhost" && host != "::1" {
		return addr
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// parseShard returns what a URL says, or what is wrong with it.
func parseShard(text string) (s shard, problem string) {
	s.options = new(redis.UniversalOptions)
	scheme, _, _ := strings.Cut(text, ":")
	switch s.kind = schemes[strings.ToLower(scheme)]; s.kind {
	case "":
		return s, "the URL's scheme is unknown; " + schemesMustBe
	case "memory":
		if strings.Trim(text[len(scheme):], ":/") != "" {
			return s, "memory: has no host, path or query; write memory: alone"
		}
		return s, ""
	}
	authority, query, hasQuery := strings.Cut(text, "?")
	if strings.Contains(authority[strings.LastIndexByte(authority, '@')+1:], ",") {
		return s, "the URL has several hosts; for a Cluster write redis://HOST:PORT?addr=HOST:PORT, for Sentinels redis://HOST:PORT?master_name=NAME&addr=HOST:PORT, and for shards a URL each, with spaces between them"
	}
	if hasQuery {
		if s.prefix, query, problem = cutPrefix(query); problem != "" {
			return s, problem
		}
		if text = authority; query != "" {
			text += "?" + query
		}
	}
	if s.kind == "memcached" {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || query != "" || u.Fragment != "" {
			return s, "the URL must be memcached://HOST:PORT, or with ?prefix=staging:, and without a user, a path and anything else"
		}
		s.options.Addrs = []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "11211"))}
		return s, ""
	}
	o, err := redisbackend.ParseURL(text)
	if err != nil {
		return s, strings.TrimPrefix(err.Error(), "redisbackend: ")
	}
	s.options = o
	return s, ""
}

// cutPrefix removes prefix from a query.
func cutPrefix(query string) (prefix, remainder, problem string) {
	parts := strings.Split(query, "&")
	for i, part := range parts {
		value, found := strings.CutPrefix(part, "prefix=")
		if !found {
			continue
		}
		prefix, err := url.QueryUnescape(value)
		if err != nil || prefix == "" || len(prefix) > 100 || strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }) {
			return "", "", "the URL's prefix is wrong; it must be 1 to 100 printable ASCII characters without spaces and braces, such as staging:"
		}
		return prefix, strings.Join(slices.Delete(parts, i, i+1), "&"), ""
	}
	return "", query, ""
}

// openRedis returns a backend over shards, and sets a clock in o. On an error, it leaves open
// what it has added to c.
func openRedis(shards []shard, o *throttler.Options, c *closers) (driver.Backend, error) {
	var servers []redisbackend.Shard
	for _, s := range shards {
		client, err := redisbackend.NewClient(s.options)
		if err != nil {
			return nil, err
		}
		*c = append(*c, client.Close)
		servers = append(servers, redisbackend.Shard{Name: s.name, Primary: client})
	}
	b, err := redisbackend.New(servers, &redisbackend.Options{Prefix: shards[0].prefix + "weir:", Clock: o.Clock})
	if err != nil {
		return nil, err
	}
	*c = append(*c, func() error { b.Close(); return nil }, greet(b, weirlog.Ensure(o.Observer)))
	if o.Clock == nil {
		o.Clock = b.Clock()
	}
	return b, nil
}

// greetTimeout bounds the first call to the servers.
const greetTimeout = 5 * time.Second

// greet loads the scripts at b's servers in the background, and warns if one does not answer, before
// a request shows it. The function that it returns ends the call.
func greet(b *redisbackend.Backend, o observe.Observer) (end func() error) {
	ctx, cancel := context.WithTimeout(context.Background(), greetTimeout)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.Load(ctx); err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			o.Warned(observe.Warned{
				Text: "a server of weir.Open does not answer: " + err.Error(),
				Hint: "until it does, requests are served without limits, unless the middleware has FailClosed",
			})
		}
	}()
	return func() error {
		cancel()
		<-done
		return nil
	}
}

func openMemcached(shards []shard, c *closers) (driver.Backend, error) {
	var servers []memcachedbackend.Server
	for _, s := range shards {
		client := memcachedbackend.NewClient(s.options.Addrs[0])
		*c = append(*c, client.Close)
		servers = append(servers, memcachedbackend.Server{Name: s.name, Client: client})
	}
	b, err := memcachedbackend.New(servers, &memcachedbackend.Options{Prefix: shards[0].prefix + "weir:"})
	if err != nil {
		return nil, err
	}
	*c = append(*c, func() error { b.Close(); return nil })
	return b, nil
}
