package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/test/bench/peers"
)

// ceilingRows measure a server with redis-benchmark, one decision or command at a time and in
// pipelines of 16 and 64.
func (l *lab) ceilingRows() []row {
	if _, err := exec.LookPath("redis-benchmark"); err != nil {
		return nil
	}
	const key = "ceiling:client-__rand_int__"
	script := func(source string, args ...string) func(*server) ([]string, error) {
		return func(s *server) ([]string, error) {
			sha, err := s.admin.ScriptLoad(context.Background(), source).Result()
			return append([]string{"EVALSHA", sha}, args...), err
		}
	}
	command := func(args ...string) func(*server) ([]string, error) {
		return func(*server) ([]string, error) { return args, nil }
	}
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	keys := func(n int) []string {
		return append([]string{strconv.Itoa(n)}, slices.Repeat([]string{key}, n)...)
	}
	var rows []row
	for _, c := range []struct {
		name      string
		decisions int // per command
		command   func(*server) ([]string, error)
	}{
		{"PING", 1, command("PING")},
		{"INCR", 1, command("INCR", "incr:"+key)},
		{"one decision per script call", 1, script(peers.MinimalScript, "1", key, now, strconv.Itoa(unlimited), "3600000")},
		{"16 decisions per script call", 16, script(minimalScripts, append(keys(16), now, strconv.Itoa(unlimited), "3600000")...)},
		{"16 × one number read and counted up", 16, script(countScript, append(keys(16), strings.Repeat("1", 19))...)},
		{"16 × two states read and replaced", 16, script(replaceScript, append(keys(32), strings.Repeat("s", 80))...)},
	} {
		for _, depth := range []int{1, 16, 64} {
			rows = append(rows, row{name: fmt.Sprintf("ceiling/%s/P%d", c.name, depth), x: float64(depth), cells: []cell{{
				"redis-benchmark", peers.Ceiling, func(ctx context.Context) (sample, error) {
					return l.redisBenchmark(ctx, c.command, c.decisions, depth)
				},
			}}})
		}
	}
	return rows
}

// minimalScripts is peers.MinimalScript for any number of keys.
const minimalScripts = `
local now, quota, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local all = {}
for i, key in ipairs(KEYS) do
  local stored = redis.call('GET', key)
  local used, reset_at = 0, 0
  if stored then used, reset_at = struct.unpack('>I7I6', stored) end
  if reset_at <= now then
    used, reset_at = 0, now + window
    redis.call('SET', key, struct.pack('>I7I6', 1, reset_at), 'PX', window + 1000)
    all[i] = 1
  elseif used < quota then
    redis.call('SET', key, struct.pack('>I7I6', used + 1, reset_at), 'KEEPTTL')
    all[i] = used + 1
  else
    all[i] = -used
  end
end
return all
`

// The lowest costs of decisions without computation: about one window, which weir keeps as a
// number, and about two policies of three mixed limits each, which weir keeps in 80 bytes
// each. They use the cheapest of several ways to write.
var (
	countScript   = writingScript(`'INCRBY', key, '1'`)
	replaceScript = writingScript(`'SETRANGE', key, '0', stored[i]`)
)

// writingScript returns a script that reads all keys and returns their values. It runs command
// on each key with a value as long as ARGV[1], and sets the others to ARGV[1].
func writingScript(command string) string {
	return `
local stored = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  if stored[i] and #stored[i] == #ARGV[1] then
    redis.call(` + command + `)
  else
    redis.call('SET', key, ARGV[1], 'PX', '3600000')
    stored[i] = ARGV[1]
  end
end
return table.concat(stored)
`
}

var perSecond = regexp.MustCompile(`([\d.]+) requests per second`)

// redisBenchmark runs the command so often that it takes about a sample's time.
func (l *lab) redisBenchmark(ctx context.Context, command func(*server) ([]string, error), decisions, depth int) (sample, error) {
	server, err := l.redis("ceiling")
	if err != nil {
		return sample{}, err
	}
	what, err := command(server)
	if err != nil {
		return sample{}, err
	}
	run := func(n int) (float64, error) {
		_, port, err := net.SplitHostPort(server.Addr)
		if err != nil {
			return 0, err
		}
		args := []string{"-h", "127.0.0.1", "-p", port, "-c", "50", "-P", strconv.Itoa(depth), "-r", strconv.Itoa(len(l.keys)), "-n", strconv.Itoa(n), "-q"}
		out, err := exec.CommandContext(ctx, "redis-benchmark", append(args, what...)...).Output()
		if err != nil {
			return 0, fmt.Errorf("redis-benchmark: %w", err)
		}
		found := perSecond.FindAllSubmatch(out, -1)
		if len(found) == 0 {
			return 0, fmt.Errorf("redis-benchmark said %q", out)
		}
		return strconv.ParseFloat(string(found[len(found)-1][1]), 64)
	}
	rate, err := run(5000)
	if err != nil {
		return sample{}, err
	}
	n := max(5000, int(rate*l.sample.Seconds()))
	before, err := server.cpu()
	if err != nil {
		return sample{}, err
	}
	if rate, err = run(n); err != nil {
		return sample{}, err
	}
	after, err := server.cpu()
	if err != nil {
		return sample{}, err
	}
	return sample{values: map[string]float64{
		"per_s":    rate * float64(decisions),
		"redis_us": float64(after-before) / float64(time.Microsecond) / float64(n*decisions),
	}}, nil
}
