package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	redisbackend "github.com/weir-go/weir/backend/redis"
)

// shardConfig is a shard of Redis: where its primary is, and its replicas.
type shardConfig struct {
	name     string
	primary  redis.UniversalOptions // a server, a Sentinel master name, or a Cluster
	replicas []string               // host:port; in all else as the primary
	exposed  bool                   // its password is in the configuration
	password string                 // the file that has it, or ""
}

// kind says what the primary is found by.
func (s *shardConfig) kind() string {
	switch {
	case s.primary.MasterName != "":
		return "sentinel"
	case s.primary.IsClusterMode:
		return "cluster"
	}
	return "primary"
}

func readShards(v value) []shardConfig {
	var shards []shardConfig
	names := map[string]value{}
	for _, item := range v.items("a list of shards, such as [{name: a, primary: 127.0.0.1:6379}]") {
		f := item.fields("name", "primary", "sentinel", "cluster", "replicas", "tls", "username", "password_file")
		s := shardConfig{name: readName(f["name"], names, "shard")}
		s.readPrimary(item, f)
		s.readAccess(f)
		replicas := f["replicas"].items("a list of addresses, such as [127.0.0.1:6380]")
		if len(replicas) > 0 && s.kind() == "cluster" {
			f["replicas"].problem("%s is set, but peeks of a Cluster go to its primaries; leave it out", f["replicas"].name())
		}
		for _, replica := range replicas {
			s.replicas = append(s.replicas, replica.address(hostNeeded))
		}
		shards = append(shards, s)
	}
	return shards
}

// readPrimary reads the one of three keys that says where the primary is.
func (s *shardConfig) readPrimary(item value, f map[string]value) {
	const mustBe = "a host and a port, such as 127.0.0.1:6379, or a URL, such as rediss://weir@127.0.0.1:6379/0; or there must be sentinel or cluster in its place"
	var set []string
	for _, key := range []string{"primary", "sentinel", "cluster"} {
		if !f[key].missing() {
			set = append(set, key)
		}
	}
	switch {
	case len(set) > 1:
		item.problem("%s has %s; it must have one of primary, sentinel and cluster", item.name(), strings.Join(set, " and "))
	case len(set) == 0 || set[0] == "primary":
		s.readServer(f["primary"], mustBe)
	case set[0] == "sentinel":
		const list = "a list of the Sentinels' addresses, such as [127.0.0.1:26379]"
		sentinel := f["sentinel"].fields("master", "addrs", "username", "password_file")
		s.primary.MasterName, _ = sentinel["master"].scalar("the name by which Sentinels know the primary, such as mymaster")
		s.readAddrs(sentinel["addrs"], list)
		s.primary.SentinelUsername, s.primary.SentinelPassword = readUser(sentinel)
	default:
		s.primary.IsClusterMode = true
		s.readAddrs(f["cluster"], "a list of nodes' addresses, such as [127.0.0.1:7000]")
	}
}

// readServer reads the address or URL of a primary. A URL may have a password, so it
// is never shown.
func (s *shardConfig) readServer(v value, mustBe string) {
	text, ok := v.scalar(mustBe)
	switch {
	case !ok:
	case strings.ContainsAny(text, "@/"):
		o, err := redisbackend.ParseURL(text)
		if err != nil || len(o.Addrs) > 1 || o.IsClusterMode || o.MasterName != "" || !validAddress(o.Addrs[0], hostNeeded) {
			v.problem("%s is a URL of another form than redis://USER@HOST:PORT/DB or, with TLS, rediss://USER@HOST:PORT/DB; it is not shown, for it may have a password", v.name())
			return
		}
		s.primary, s.exposed = *o, o.Password != ""
	case !validAddress(text, hostNeeded):
		v.wrong(mustBe)
	default:
		s.primary.Addrs = []string{text}
	}
}

func (s *shardConfig) readAddrs(v value, mustBe string) {
	items := v.items(mustBe)
	if len(items) == 0 && (v.missing() || v.node.Kind == yaml.SequenceNode) {
		v.problem("%s is empty; it must be %s", v.name(), mustBe)
	}
	for _, item := range items {
		s.primary.Addrs = append(s.primary.Addrs, item.address(hostNeeded))
	}
}

// readAccess reads what the shard's servers ask of a client.
func (s *shardConfig) readAccess(f map[string]value) {
	user, password := readUser(f)
	if s.primary.Username != "" && user != "" {
		f["username"].problem("%s is set, and the URL has a user too; keep one of them", f["username"].name())
	}
	if s.primary.Password != "" && password != "" {
		f["password_file"].problem("%s is set, and the URL has a password too; keep this one", f["password_file"].name())
	}
	if user != "" {
		s.primary.Username = user
	}
	if password != "" {
		s.primary.Password = password
		name, _ := f["password_file"].peek()
		s.password = f["password_file"].fileName(name)
	}
	config := readTLS(f["tls"])
	if config == nil {
		return
	}
	if text, ok := f["primary"].peek(); ok && strings.HasPrefix(text, "redis:") {
		f["tls"].problem("%s is set, but %s is a redis URL, which is without TLS; write rediss", f["tls"].name(), f["primary"].name())
	}
	s.primary.TLSConfig = config
}

// credentials returns what is asked for the password of each new connection: the one in
// the file, or while that cannot be read, the last one. A password may be changed while
// the demo runs.
func (s *shardConfig) credentials() func() (user, password string) {
	if s.password == "" {
		return nil
	}
	var last atomic.Value
	last.Store(s.primary.Password)
	return func() (user, password string) {
		content, err := os.ReadFile(s.password)
		if password := strings.TrimRight(string(content), "\r\n"); err == nil && password != "" {
			last.Store(password)
		}
		return s.primary.Username, last.Load().(string)
	}
}

// readUser reads a user and the password in a file, which may end with a line end.
func readUser(f map[string]value) (user, password string) {
	if v := f["username"]; !v.missing() {
		user, _ = v.scalar("the name of a user of Redis")
	}
	v := f["password_file"]
	if v.missing() {
		return user, ""
	}
	const mustBe = "a file with a password, on one line"
	content, ok := v.file(mustBe)
	password = strings.TrimRight(string(content), "\r\n")
	if ok && (password == "" || strings.ContainsAny(password, "\r\n")) {
		v.wrong(mustBe)
	}
	return user, password
}

// readTLS returns nil without TLS.
func readTLS(v value) *tls.Config {
	const mustBe = "true, false or a mapping with ca_file, cert_file, key_file and server_name"
	if v.missing() {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if text, ok := v.peek(); ok {
		if !slices.Contains([]string{"true", "false"}, text) {
			v.wrong(mustBe)
		}
		if text == "false" {
			return nil
		}
		return config
	}
	f := v.fields("ca_file", "cert_file", "key_file", "server_name")
	if v := f["ca_file"]; !v.missing() {
		const mustBe = "a file with certificates in PEM"
		if content, ok := v.file(mustBe); ok {
			config.RootCAs = x509.NewCertPool()
			if !config.RootCAs.AppendCertsFromPEM(content) {
				v.wrong(mustBe)
			}
		}
	}
	cert, key := f["cert_file"], f["key_file"]
	if !cert.missing() || !key.missing() {
		const mustBe = "a file in PEM; a client's certificate is one, and its key another"
		certPEM, certOK := cert.file(mustBe)
		keyPEM, keyOK := key.file(mustBe)
		if certOK && keyOK {
			pair, err := tls.X509KeyPair(certPEM, keyPEM)
			if err != nil {
				cert.problem("%s and %s are no pair of a certificate and its key in PEM: %v", cert.name(), key.name(), err)
			}
			config.Certificates = []tls.Certificate{pair}
		}
	}
	if v := f["server_name"]; !v.missing() {
		config.ServerName, _ = v.scalar("the name in the servers' certificates, such as redis.internal")
	}
	return config
}
