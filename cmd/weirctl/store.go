package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	redisbackend "github.com/weir-go/weir/backend/redis"
	"github.com/weir-go/weir/cmd/throttlerd/inspect"
	redispolicies "github.com/weir-go/weir/throttler/policies/redis"
)

// server is the Redis server of policies and overrides.
type server struct {
	program
	addr, prefix, ca string
	unchecked        bool
}

// serverOf defines the flags of a command that name a server.
func serverOf(f *flag.FlagSet) *server {
	o := new(server)
	f.StringVar(&o.addr, "redis", "", "`address` of the Redis server that keeps them, or a URL such as rediss://weir@redis.internal:6379/0, or redis://HOST:PORT?master_name=NAME of a Sentinel; $WEIR_REDIS if not set. The password is $REDISCLI_AUTH unless the URL has one")
	f.StringVar(&o.prefix, "prefix", redispolicies.DefaultPrefix, "the prefix of their Redis keys")
	o.define(f)
	f.StringVar(&o.ca, "cacert", "", "a PEM `file` of the CAs that signed the server's certificate, if the system does not trust them")
	return o
}

const redisMustBe = "a host and a port, such as 127.0.0.1:6379, or a URL, such as rediss://weir@redis.internal:6379/0"

// withStore calls do with the store.
func (o *server) withStore(do func(s *redispolicies.Store) error) error {
	o.addr = cmp.Or(o.addr, os.Getenv("WEIR_REDIS")) // not the flag's default: -h would print it, with a password
	if o.addr == "" {
		return o.withConfigured(do)
	}
	client, err := o.client()
	if err != nil {
		return err
	}
	defer closing(client)
	return do(redispolicies.NewStore(client, o.prefix))
}

// withConfigured calls do with the store that the program's configuration names.
func (o *server) withConfigured(do func(s *redispolicies.Store) error) error {
	service, err := o.read()
	if err != nil && !errors.Is(err, inspect.ErrNothing) {
		return err
	}
	if service != nil && service.Overrides {
		s, end, err := service.Config.OpenPolicies()
		if err != nil {
			return err
		}
		if s != nil {
			defer func() { _ = end() }()
			return do(s)
		}
	}
	return usage("-redis is not set; it must be %s, or WEIR_REDIS must be, or policies_at in the file of -config, or -env must be throttlerd's environment", redisMustBe)
}

func (o *server) client() (redis.UniversalClient, error) {
	options := &redis.UniversalOptions{Addrs: []string{o.addr}}
	if strings.Contains(o.addr, "/") {
		var err error
		if options, err = redisbackend.ParseURL(o.addr); err != nil {
			return nil, errUsage{fmt.Errorf("-redis: %w", err)}
		}
	} else if host, port, err := net.SplitHostPort(o.addr); err != nil || host == "" || port == "" || strings.Contains(port, ",") {
		return nil, usage("-redis is %q; it must be %s", o.addr, redisMustBe)
	}
	options.Password = cmp.Or(options.Password, os.Getenv("REDISCLI_AUTH"))
	if o.ca != "" {
		pem, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("-cacert: %w", err)
		}
		options.TLSConfig = cmp.Or(options.TLSConfig, &tls.Config{MinVersion: tls.VersionTLS12})
		options.TLSConfig.RootCAs = x509.NewCertPool()
		if !options.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-cacert is %s, which has no certificate; it must be a file in PEM", o.ca)
		}
	}
	return redisbackend.NewClient(options)
}

// write makes a change, and prints the new version.
func (o *server) write(ctx context.Context, c *command, change redispolicies.Change) error {
	return o.withStore(func(s *redispolicies.Store) error {
		version, err := s.Write(ctx, change)
		if err != nil {
			return err
		}
		if c.json {
			return printJSON(c.out, map[string]int64{"version": version})
		}
		_, err = fmt.Fprintf(c.out, "version %d, which processes have within a second unless they are set to look more rarely\n", version)
		return err
	})
}
