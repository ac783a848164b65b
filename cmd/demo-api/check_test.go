package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

// A lease saves nothing where a decision charges an exact policy too.
func TestLeasedBesideExact(t *testing.T) {
	const redis = "backend: redis\nredis: {shards: [{name: a, primary: 127.0.0.1:6379}]}\npolicies:\n"
	const core, secondary = "  core: {limits: [{quota: 20, window: 1h}], mode: %s}\n", "  secondary: {limits: [{quota: 20, window: 1h}], mode: %s}\n"
	for text, want := range map[string]string{
		fmt.Sprintf(redis+core, "leased"):                    `policy "core" is leased and "secondary" is exact`,
		fmt.Sprintf(redis+core+secondary, "exact", "leased"): `policy "secondary" is leased and "core" is exact`,
		fmt.Sprintf(redis+core, "exact"):                     "",
		fmt.Sprintf(redis+core+secondary, "leased", "leased") + "  search: {limits: [{quota: 20, window: 1h}], mode: leased}\n  auth.createToken: {limits: [{quota: 20, window: 1h}], mode: leased}\n": "",
		redis + "  org: {limits: [{quota: 20, window: 1h}], mode: leased}": `policy "org" is leased and "org.member" is exact`,
	} {
		c, err := parse("demo.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(c.modeWarnings(), "\n"); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s: got warnings %q, want %q", text, got, want)
		}
	}
}

// -check builds what a start builds, and connects to nothing.
func TestCheckBuildsWithoutDialing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var dialed atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			dialed.Add(1)
			_ = c.Close()
		}
	}()
	addr := listener.Addr().String()
	dir := writeFiles(t, map[string]string{"key": strings.Repeat("k", 32), "flags.json": `{"flags": {}}`})
	windows := "policies:\n  core: {limits: [{quota: 20, window: 1h%s}], mode: %s}\n"
	for _, test := range []struct{ name, text, want string }{
		{"memory", "backend: memory\n", ""},
		{"exact", "backend: redis\nredis: {shards: [{name: a, primary: ADDR, replicas: [ADDR]}]}\n" + fmt.Sprintf(windows, "", "exact"), ""},
		{"leased", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}]}\n" + fmt.Sprintf(windows, "", "leased"), ""},
		{"synced", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}]}\n" + fmt.Sprintf(windows, ", aligned: true", "synced, sync: 10ms"), ""},
		{"Sentinels", "backend: redis\nredis: {shards: [{name: a, sentinel: {master: m, addrs: [ADDR]}}]}\n", ""},
		{"a Cluster", "backend: redis\nredis: {shards: [{name: a, cluster: [ADDR]}]}\n", ""},
		{"all at once", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}], resharded: [{name: b, primary: ADDR}]}\nmemcached: {servers: [ADDR]}\nflags: flags.json\nshadow: memory\nrefusal_cache: true\non_failure: local\nprocesses: 3\n", ""},
		{"no flags' file", "backend: redis\nredis: {shards: [{name: a, primary: ADDR}]}\nmemcached: {servers: [ADDR]}\nflags: gone.json\n", "the flags' file is wrong, until it is right all clients are on redis: " + dir + "/gone.json: no such file or directory"},
		{"shares", "backend: shares\nshares: {self: ADDR, members: [ADDR, '127.0.0.1:1'], key_file: key, refresh: 10ms}\n", ""},
		{"a long name", "backend: shares\nshares: {self: ADDR, members: [ADDR, '" + strings.Repeat("a", 253) + ":9001'], key_file: key}\n", "division: Members[1] has 258 bytes; a name has from 1 to 255"},
	} {
		t.Run(test.name, func(t *testing.T) {
			file := dir + "/demo.yaml"
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(test.text, "ADDR", "'"+addr+"'")), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			err := run(t.Context(), []string{"-check", "-config", file}, &out, newOutput())
			if test.want == "" && (err != nil || !strings.HasSuffix(out.String(), "the configuration is right\n")) {
				t.Errorf("got %v, %s", err, &out)
			}
			if test.want != "" && (err == nil || err.Error() != "the configuration is wrong, nothing was started\n"+file+": "+test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	_ = listener.Close()
	<-done
	if n := dialed.Load(); n != 0 {
		t.Errorf("the checks dialed %d times", n)
	}
}
