package peers

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// MinimalScript decides about one fixed window in a packed string: the cheapest script that we
// know for one decision.
const MinimalScript = `
local stored = redis.call('GET', KEYS[1])
local now, quota, window = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if stored then
  local used, reset_at = struct.unpack('>I7I6', stored)
  if reset_at > now then
    if used >= quota then return {0, used, reset_at} end
    redis.call('SET', KEYS[1], struct.pack('>I7I6', used + 1, reset_at), 'KEEPTTL')
    return {1, used + 1, reset_at}
  end
end
local reset_at = now + window
redis.call('SET', KEYS[1], struct.pack('>I7I6', 1, reset_at), 'PX', window + 1000)
return {1, 1, reset_at}
`

var pipelinedScript = Peer{Name: "one script per decision, pipelined", Role: Ceiling, Open: func(c Config) (*Limiter, error) {
	script := rueidis.NewLuaScript(MinimalScript)
	quota, window := strconv.FormatInt(c.Quota, 10), strconv.FormatInt(c.Window.Milliseconds(), 10)
	return openPipelined(c, func(ctx context.Context, client rueidis.Client, key string) (bool, error) {
		now := strconv.FormatInt(time.Now().UnixMilli(), 10)
		reply, err := script.Exec(ctx, client, []string{"script:" + key}, []string{now, quota, window}).AsIntSlice()
		return err == nil && reply[0] == 1, err
	})
}}

// pipelinedNative needs no script, because the key contains the window's number: all keys
// reset at once, and refused requests count.
var pipelinedNative = Peer{Name: "INCR and PEXPIRE, pipelined", Role: Ceiling, Open: func(c Config) (*Limiter, error) {
	window := c.Window.Milliseconds()
	return openPipelined(c, func(ctx context.Context, client rueidis.Client, key string) (bool, error) {
		key = "native:" + strconv.FormatInt(time.Now().UnixMilli()/window, 10) + ":" + key
		replies := client.DoMulti(ctx, client.B().Incr().Key(key).Build(), client.B().Pexpire().Key(key).Milliseconds(window).Nx().Build())
		used, err := replies[0].AsInt64()
		return used <= c.Quota, err
	})
}}

// openPipelined decides by take, whose commands the client writes to one connection together
// with the commands of other goroutines.
func openPipelined(c Config, take func(context.Context, rueidis.Client, string) (bool, error)) (*Limiter, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{c.Redis}, AlwaysPipelining: true, DisableCache: true, PipelineMultiplex: -1,
	})
	if err != nil {
		return nil, err
	}
	return &Limiter{Close: client.Close, Take: func(ctx context.Context, key string) (bool, error) { return take(ctx, client, key) }}, nil
}
