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
func (l *lab) ceilingRows() (rows []row) {
	if _, err := exec.LookPath("redis-benchmark"); err != nil {
		return nil
	}
	const key = "ceiling:client-__rand_int__"
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	keys := func(n int, args ...string) []string {
		return slices.Concat([]string{strconv.Itoa(n)}, slices.Repeat([]string{key}, n), args)
	}
	for _, c := range []struct {
		name      string
		decisions int    // per command
		script    string // that the arguments are for; if empty, they are a command
		args      []string
	}{
		{"PING", 1, "", []string{"PING"}},
		{"INCR", 1, "", []string{"INCR", "incr:" + key}},
		{"one decision per script call", 1, peers.MinimalScript, keys(1, now, strconv.Itoa(unlimited), "3600000")},
		{"16 decisions per script call", 16, minimalScripts, keys(16, now, strconv.Itoa(unlimited), "3600000")},
		{"16 × one number read and counted up", 16, countScript, keys(16, strings.Repeat("1", 19))},
		{"16 × two states read and replaced", 16, replaceScript, keys(32, strings.Repeat("s", 80))},
	} {
		for _, depth := range []int{1, 16, 64} {
			measure := func(ctx context.Context) sample { return l.redisBenchmark(ctx, c.script, c.args, c.decisions, depth) }
			rows = append(rows, row{name: fmt.Sprintf("ceiling/%s/P%d", c.name, depth), x: float64(depth), cells: []cell{{"redis-benchmark", peers.Ceiling, measure}}})
		}
	}
	return rows
}

// minimalScripts is peers.MinimalScript for any number of keys.
const minimalScripts = `
local now, quota, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local answers = {}
for i, key in ipairs(KEYS) do
  local stored = redis.call('GET', key)
  local used, reset_at = 0, 0
  if stored then used, reset_at = struct.unpack('>I7I6', stored) end
  if reset_at <= now then
    used, reset_at = 0, now + window
    redis.call('SET', key, struct.pack('>I7I6', 1, reset_at), 'PX', window + 1000)
    answers[i] = 1
  elseif used < quota then
    redis.call('SET', key, struct.pack('>I7I6', used + 1, reset_at), 'KEEPTTL')
    answers[i] = used + 1
  else
    answers[i] = -used
  end
end
return answers
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
func (l *lab) redisBenchmark(ctx context.Context, script string, args []string, decisions, depth int) sample {
	server := l.redis("ceiling")
	if script != "" {
		args = append([]string{"EVALSHA", must(server.admin.ScriptLoad(ctx, script).Result())}, args...)
	}
	_, port, err := net.SplitHostPort(server.Addr)
	check(err)
	run := func(n int) float64 {
		flags := []string{"-h", "127.0.0.1", "-p", port, "-c", "50", "-P", strconv.Itoa(depth), "-r", strconv.Itoa(len(l.keys)), "-n", strconv.Itoa(n), "-q"}
		output := must(exec.CommandContext(ctx, "redis-benchmark", append(flags, args...)...).Output())
		found := perSecond.FindAllSubmatch(output, -1)
		if len(found) == 0 {
			check(fmt.Errorf("redis-benchmark printed %q", output))
		}
		return must(strconv.ParseFloat(string(found[len(found)-1][1]), 64))
	}
	n := max(5000, int(run(5000)*l.sample.Seconds()))
	cpu := server.cpu()
	rate := run(n)
	return sample{values: map[string]float64{
		"per_s":    rate * float64(decisions),
		"redis_us": micros(server.cpu()-cpu) / float64(n*decisions),
	}}
}
