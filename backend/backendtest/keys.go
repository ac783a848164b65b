package backendtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weir-go/weir/clock"
	"github.com/weir-go/weir/throttler"
	"github.com/weir-go/weir/throttler/driver"
)

// identity identifies a count.
type identity struct{ policy, partition, key string }

func keyCases() []testCase {
	long := strings.Repeat("k", 10_000)
	return []testCase{
		keyCase("keys of any bytes",
			"{}", "}{", "{", "}", "{a}", "a", "{a}b", "{b}a", "{{a}}", "{}a", "a{}",
			" ", "  ", "a ", " a", "a b", "a\tb", "\n", "\r\n", "a\r\nb", "a\nb", "get a\r\n",
			"\x00", "\x00\x00", "a\x00", "a\x00b", "\x00a",
			"\xff", "\xfe", "\xc3\x28", "\xed\xa0\x80", "\ufffd", "é", "e\u0301", "日本",
			"*", "?", "[a]", "a:b", "a|b", "a/b", "a.b", "%s", "%00", `\x00`, `"`, "'", "$1", "-1", "0", "00", "A"),
		keyCase("long keys",
			long, long+"k", long[1:], "x"+long[1:], long[1:]+"x",
			long[:64], long[:128], long[:249], long[:250], long[:251], long[:255], long[:256], long[:257]),
		{
			name:        "the empty key",
			explanation: opaqueKeys,
			run: func(ctx context.Context, backend driver.Backend) error {
				return countsApart(ctx, backend, []identity{{"core", "", ""}, {"search", "", ""}, {"core", "p", ""}, {"core", "\x00", ""}, {"core", "\x00", "\x00"}, {"core", "0", "0"}})
			},
		},
		{
			name:        "names whose parts join to the same bytes",
			explanation: opaqueKeys,
			run: func(ctx context.Context, backend driver.Backend) error {
				return countsApart(ctx, backend, joinAlike())
			},
		},
	}
}

// keyCase puts each of keys in its own partition, and all in one, under two policies.
func keyCase(name string, keys ...string) testCase {
	var ids []identity
	for _, key := range keys {
		ids = append(ids, identity{"core", key, key}, identity{"search", key, key}, identity{"core", "acme", key})
	}
	return testCase{
		name:        name,
		explanation: opaqueKeys,
		run: func(ctx context.Context, backend driver.Backend) error {
			return countsApart(ctx, backend, ids)
		},
	}
}

// joinAlike are names that are equal if a backend joins the parts without saying where they
// end, whatever it joins them with.
func joinAlike() []identity {
	ids := []identity{
		{"a", "p", "bc"}, {"ab", "p", "c"}, {"abc", "p", "c"}, {"a", "p", "c"},
		{"a", "bc", "d"}, {"ab", "c", "d"}, {"a", "b", "cd"}, {"a", "bcd", "d"},
		{"core", "alice", "alice"}, {"core", "alicealice", "alice"}, {"core", "alice", "alicealice"},
		{"core", "alice", "core"}, {"core", "core", "alice"}, {"core", "core", "core"},
		{"core", "alicecore", "alicecore"}, {"core", "corealice", "corealice"},
		{"core2", "x", "x"}, {"core", "2x", "2x"}, {"core", "x", "2x"},
		// Lengths in front do not help if they can be part of a name.
		{"core", "1:a", "b"}, {"core", "1", "a:b"}, {"1", "core", "a"}, {"11", "core", "a"},
	}
	for _, glue := range []string{":", "/", "-", ".", "_", "|", " ", "\x00", "{", "}", "\n", ","} {
		ids = append(ids,
			identity{"a", "p", "b" + glue + "c"}, identity{"a", "p" + glue + "b", "c"},
			identity{"a", "p" + glue + "b" + glue + "c", "c"}, identity{"a", "p", "p" + glue + "b" + glue + "c"},
			identity{"core", "core" + glue + "alice", "core" + glue + "alice"}, identity{"core", "core" + glue + "alice", "alice"},
			identity{"core", "{alice}" + glue, "core"})
	}
	for _, glue := range []string{":", "/", "-", ".", "_"} {
		ids = append(ids, identity{"a" + glue + "p", "b", "c"}, identity{"a" + glue + "p" + glue + "b", "c", "c"}, identity{"a", "p", glue + "b" + glue + "c"})
	}
	return ids
}

// countsApart charges every identity a different cost, then checks that each count is its
// identity's charge alone, and refunds all but one of them.
func countsApart(ctx context.Context, backend driver.Backend, ids []identity) error {
	const quota = 100_000
	t := throttler.New(backend, &throttler.Options{Clock: clock.NewManual(t0)})
	policies := make(map[string]*throttler.Policy)
	charge := func(id identity, cost int) throttler.Charge {
		if policies[id.policy] == nil {
			policies[id.policy] = &throttler.Policy{Name: id.policy, Limits: []throttler.Limit{{Quota: quota, Window: time.Hour}}}
		}
		return throttler.Charge{Policy: policies[id.policy], Key: id.key, Partition: id.partition, Cost: int64(cost)}
	}
	decisions := make([]throttler.Decision, len(ids))
	for i, id := range ids {
		d, err := t.Take(ctx, charge(id, i+1))
		if err != nil {
			return fmt.Errorf("take for %v: %w", id, err)
		}
		if err := usedBy(d, id, i+1); err != nil {
			return err
		}
		decisions[i] = d
	}
	for i, id := range ids {
		d, err := t.Peek(ctx, charge(id, 0))
		if err != nil {
			return fmt.Errorf("peek for %v: %w", id, err)
		}
		if err := usedBy(d, id, i+1); err != nil {
			return err
		}
	}
	for i, id := range ids[1:] {
		d, err := t.Refund(ctx, decisions[i+1])
		if err != nil {
			return fmt.Errorf("refund for %v: %w", id, err)
		}
		if err := usedBy(d, id, 0); err != nil {
			return err
		}
	}
	d, err := t.Peek(ctx, charge(ids[0], 0))
	if err != nil {
		return fmt.Errorf("peek for %v: %w", ids[0], err)
	}
	return usedBy(d, ids[0], 1)
}

func usedBy(d throttler.Decision, id identity, used int) error {
	if d.NumLimits() != 1 || !d.Allowed {
		return fmt.Errorf("%v: got allowed %v with %d limits, want true with 1", id, d.Allowed, d.NumLimits())
	}
	if s := d.Limit(0); s.Used != int64(used) || s.Key != id.key {
		return fmt.Errorf("%v: got used %d, key %.40q; want used %d: it shares a count with another name", id, s.Used, s.Key, used)
	}
	return nil
}

// String quotes the name's parts.
func (id identity) String() string {
	return fmt.Sprintf("key %.40q (%d bytes) under policy %q in partition %.40q", id.key, len(id.key), id.policy, id.partition)
}
