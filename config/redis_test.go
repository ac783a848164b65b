package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// withShard returns a configuration of one shard, named a, with these keys.
func withShard(keys string) string {
	return "backend: redis\nredis:\n  shards:\n    - {name: a, " + keys + "}\n"
}

// writeFiles writes files, by their names, into a separate directory.
func writeFiles(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestShardsAreRead(t *testing.T) {
	t.Setenv("HAS_PASSWORD", "from env")
	dir := writeFiles(t, map[string]string{"password": "s3cret\n", "sentinels": "other"})
	for keys, want := range map[string]struct {
		options  redis.UniversalOptions
		password string // the file that has it
		replicas string
		exposed  bool
	}{
		`primary: "127.0.0.1:1", username: weir, password_file: password`: {
			options:  redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}, Username: "weir", Password: "s3cret"},
			password: filepath.Join(dir, "password"),
		},
		`primary: "redis://weir@[::1]:1/3", password_file: password, replicas: ["[::1]:2"]`: {
			options:  redis.UniversalOptions{Addrs: []string{"[::1]:1"}, Username: "weir", Password: "s3cret", DB: 3},
			password: filepath.Join(dir, "password"), replicas: "[::1]:2",
		},
		`primary: "redis://:in%2Furl@a"`: {
			options: redis.UniversalOptions{Addrs: []string{"a:6379"}, Password: "in/url"},
			exposed: true,
		},
		`sentinel: {master: m, addrs: ["a:1", "b:2"], username: watch, password_file: sentinels}, password_file: password, replicas: ["c:3"]`: {
			options: redis.UniversalOptions{
				Addrs: []string{"a:1", "b:2"}, MasterName: "m", Password: "s3cret",
				SentinelUsername: "watch", SentinelPassword: "other",
			},
			password: filepath.Join(dir, "password"), replicas: "c:3",
		},
		`primary: "a:1", idle_timeout: 4m`: {
			options: redis.UniversalOptions{Addrs: []string{"a:1"}, ConnMaxIdleTime: 4 * time.Minute},
		},
		`primary: /run/redis.sock, username: weir, password_env: HAS_PASSWORD`: {
			options: redis.UniversalOptions{Addrs: []string{"/run/redis.sock"}, Username: "weir", Password: "from env"},
		},
		`cluster: ["a:1"], username: weir, tls: false`: {
			options: redis.UniversalOptions{Addrs: []string{"a:1"}, IsClusterMode: true, Username: "weir"},
		},
	} {
		c, err := parse(filepath.Join(dir, "weir.yaml"), withShard(keys))
		if err != nil {
			t.Errorf("%s: %v", keys, err)
			continue
		}
		got := c.keys.Redis.Shards[0]
		if !reflect.DeepEqual(got.options, want.options) || got.PasswordFile.name != want.password || strings.Join(texts(got.Replicas), " ") != want.replicas || got.exposed != want.exposed {
			t.Errorf("%s: got %+v, want %+v", keys, got, want)
		}
		if got, warning := strings.Join(c.Warnings(), "\n"), `the URL of shard "a" has a password; password_file keeps it out of the configuration`; (got == warning) != want.exposed {
			t.Errorf("%s: got warnings %q", keys, got)
		}
	}
}

func TestShardErrorsSayWhatWouldBeRight(t *testing.T) {
	dir := writeFiles(t, map[string]string{"password": "s3cret", "empty": "\n", "two": "a\nb\n"})
	const aURL = "redis.shards[0].primary: a URL must have the form redis://USER@HOST:PORT/DB or, with TLS, rediss://USER@HOST:PORT/DB; it is not shown, for it may have a password"
	for keys, want := range map[string]string{
		`primary: "a:1", sentinel: {master: m, addrs: ["b:1"]}`: `redis.shards[0] has primary and sentinel; it must have one of primary, sentinel and cluster`,
		`cluster: ["b:1"], primary: "a:1"`:                      `redis.shards[0] has primary and cluster; it must have one of primary, sentinel and cluster`,
		`cluster: []`:                                           `redis.shards[0].cluster is empty; it must be a list of nodes' addresses, such as [127.0.0.1:7000]`,
		`cluster: "a:1"`:                                        `redis.shards[0].cluster is "a:1"; it must be a list, and each item a host and a port, such as 127.0.0.1:8080`,
		`cluster: [a]`:                                          `redis.shards[0].cluster[0] is "a"; it must be a host and a port, such as 127.0.0.1:8080`,
		`cluster: ["a:1"], replicas: ["a:2"]`:                   `redis.shards[0].replicas is set, but peeks of a Cluster go to its primaries; leave it out`,
		`sentinel: {addrs: ["a:1"]}`:                            `redis.shards[0].sentinel.master is missing; it must be the primary's name at the Sentinels, such as mymaster`,
		`sentinel: {master: m}`:                                 `redis.shards[0].sentinel.addrs is missing; it must be a list of the Sentinels' addresses, such as [127.0.0.1:26379]`,
		`sentinel: {master: m, addrs: ["a:1"], quorum: 2}`:      `unknown key quorum; the keys here are master, addrs, username, password_file, password_env`,

		`primary: "redis://s3cret@a:b"`:                 aURL,
		`primary: "http://weir:s3cret@a"`:               aURL,
		`primary: "redis://weir:s3cret@a?cluster=true"`: aURL,
		`primary: "weir:s3cret@a:1"`:                    aURL,
		`primary: "redis://a:99999"`:                    aURL,

		`primary: "a:1", password_file: none`:                       `redis.shards[0].password_file is "none": no such file or directory; it must be a file with a password, on one line`,
		`primary: "a:1", password_file: empty`:                      `redis.shards[0].password_file is "empty"; it must be a file with a password, on one line`,
		`primary: "a:1", password_file: two`:                        `redis.shards[0].password_file is "two"; it must be a file with a password, on one line`,
		`primary: "a:1", password_env: WEIR_TEST_IS_NOT_SET`:        `redis.shards[0].password_env is "WEIR_TEST_IS_NOT_SET", and no such environment variable is set`,
		`primary: "redis://:s3cret@a:1", password_file: password`:   `redis.shards[0].password_file is set, and the URL has a password too; keep this one`,
		`primary: "redis://weir@a:1", username: weir`:               `redis.shards[0].username is set, and the URL has a user too; keep one of them`,
		`primary: "a:1", idle_timeout: 1ms`:                         `redis.shards[0].idle_timeout is "1ms"; it must be from 1s to 24h0m0s`,
		`primary: "a:1", idle_timeout: 300`:                         `redis.shards[0].idle_timeout is "300"; it must be a duration above zero, with its unit, such as 50ms, 60s, 1h or 1d`,
		`primary: "a:1", tls: yes`:                                  `redis.shards[0].tls is "yes"; it must be true, false or a mapping with ca_file, cert_file, key_file, server_name and any_name`,
		`primary: "redis://a:1", tls: true`:                         `redis.shards[0].tls is set, but redis.shards[0].primary is a redis URL, which is without TLS; write rediss`,
		`primary: "a:1", tls: {ca_file: password}`:                  `redis.shards[0].tls.ca_file is "password"; it must be a file with certificates in PEM`,
		`primary: "a:1", tls: {ca: password}`:                       `unknown key ca; the keys here are ca_file, cert_file, key_file, server_name, any_name`,
		`primary: "a:1", tls: {cert_file: password}`:                `redis.shards[0].tls.key_file is missing; it must be a file in PEM; a client's certificate is one, and its key another`,
		`primary: "a:1", tls: {cert_file: two, key_file: password}`: `redis.shards[0].tls.cert_file and redis.shards[0].tls.key_file are no pair of a certificate and its key in PEM: tls: failed to find any PEM data in certificate input`,
	} {
		file := filepath.Join(dir, "weir.yaml")
		_, err := parse(file, withShard(keys))
		if want = file + ":4: " + want; err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %s", keys, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the password: %v", keys, err)
		}
	}
}

// The clients of roots read a changed password for each new connection.
func TestPasswordsOfRoots(t *testing.T) {
	dir := writeFiles(t, map[string]string{"password": "first\n"})
	for name, text := range map[string]string{
		"roots":  "roots: [{primary: '127.0.0.1:1', username: weir, password_file: password}]\n",
		"shards": "backend: redis\nredis: {shards: [{name: a, primary: '127.0.0.1:1', username: weir, password_file: password}]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, "password"), []byte("first\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Parse(filepath.Join(dir, "weir.yaml"), []byte(text+"policies: {core: {limits: [{quota: 5, window: 1s, algorithm: token-bucket}], consistency: synced}}\n"), &Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := &Stack{Config: c, offline: true}
		roots, err := s.openRoots()
		if err != nil || len(roots) != 1 {
			t.Fatalf("%s: %d roots, error %v", name, len(roots), err)
		}
		client := roots[0].Client.(*redis.Client)
		t.Cleanup(func() { _ = client.Close() })
		if err := os.WriteFile(filepath.Join(dir, "password"), []byte("second\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		provider := client.Options().CredentialsProvider
		if provider == nil {
			t.Errorf("%s: the client does not read the file", name)
			continue
		}
		if user, password := provider(); user != "weir" || password != "second" {
			t.Errorf("%s: the next connection is %s's, with the password %q; want weir's, with second", name, user, password)
		}
	}
}
