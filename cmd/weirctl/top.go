package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/weir-go/weir/cmd/internal/operator"
	weirdebug "github.com/weir-go/weir/contrib/debug"
)

// refusedKey is a key under a limit, summed over all processes.
type refusedKey struct {
	Policy    string    `json:"policy"`
	Limit     string    `json:"limit"`
	Label     string    `json:"key"` // a label, or a hash, as the processes show it
	Refusals  int64     `json:"refusals"`
	AtLeast   int64     `json:"at_least"`
	AtMost    int64     `json:"at_most"`
	Processes int       `json:"processes"` // the number of processes that refused it
	RetryAt   time.Time `json:"retry_at"`
}

// ranking is the output of top.
type ranking struct {
	Since  time.Time         `json:"since"` // the earliest of all processes
	Keys   []refusedKey      `json:"keys"`
	Failed map[string]string `json:"failed,omitempty"` // why a process did not answer, by its URL
}

func top(c *command) subcommand {
	n := c.flags.Int("n", 20, "how many `keys` to print")
	return subcommand{"top [-n KEYS] URL...", 1, -1, "the URL of a process' debug page at least, such as http://127.0.0.1:6070/debug/weir", func(ctx context.Context) error {
		if *n < 1 {
			return usage("-n is %d; it must be 1 or more", *n)
		}
		var urls []*url.URL
		for _, arg := range c.args {
			u, err := parseURL("the URL", arg)
			if err != nil {
				return err
			}
			u.RawQuery = "format=refused"
			urls = append(urls, u)
		}
		a := askAll(ctx, urls)
		a.Keys = a.Keys[:min(len(a.Keys), *n)]
		if err := printTop(c, &a); err != nil {
			return err
		}
		if len(a.Failed) > 0 {
			return fmt.Errorf("%d of %d processes did not answer; their refusals are missing", len(a.Failed), len(urls))
		}
		return nil
	}}
}

// askAll asks all processes at once, and sums their answers.
func askAll(ctx context.Context, urls []*url.URL) ranking {
	answers, errs := make([]weirdebug.Refusals, len(urls)), make([]error, len(urls))
	var wg sync.WaitGroup
	for i, u := range urls {
		wg.Go(func() { errs[i] = get(ctx, u, &answers[i]) })
	}
	wg.Wait()
	failed := make(map[string]string)
	var answered []weirdebug.Refusals
	for i, err := range errs {
		if err != nil {
			urls[i].RawQuery = ""
			failed[urls[i].Redacted()] = err.Error()
			continue
		}
		answered = append(answered, answers[i])
	}
	a := merge(answered)
	a.Failed = failed
	return a
}

// maxAnswer is far more than an answer of 128 keys, which a process sends at most.
const maxAnswer = 1 << 20

const urlMustBe = "it must be that of a process' debug page, such as http://127.0.0.1:6070/debug/weir"

// get asks a debug page for a JSON value.
func get(ctx context.Context, u *url.URL, to any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		var outer *url.Error
		if errors.As(err, &outer) {
			err = outer.Err // without the URL, which is printed before it
		}
		return err
	}
	defer closing(response.Body)
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("the URL is wrong (%s): %s", response.Status, urlMustBe)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("the answer is %s: %s", response.Status, bytes.TrimSpace(body))
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("the answer is no JSON: %s", urlMustBe)
	}
	return nil
}

// parseURL returns the URL of a debug page. name is the argument's.
func parseURL(name, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usage("%s is %q; %s", name, text, urlMustBe)
	}
	return u, nil
}

// merge sums the refusals of processes. A process without a key may have refused it as often
// as its Missed.
func merge(list []weirdebug.Refusals) (a ranking) {
	type name struct {
		policy string
		limit  string
		label  string
	}
	missed := int64(0)
	for _, single := range list {
		missed += single.Missed
		if a.Since.IsZero() || single.Since.Before(a.Since) {
			a.Since = single.Since
		}
	}
	sums := make(map[name]*refusedKey)
	for _, single := range list {
		for _, k := range single.Keys {
			n := name{k.Policy, k.Limit, k.Label}
			sum := sums[n]
			if sum == nil {
				sum = &refusedKey{Policy: k.Policy, Limit: k.Limit, Label: k.Label, AtMost: missed}
				sums[n] = sum
			}
			sum.Refusals += k.Count
			sum.AtLeast += k.Count - k.Excess
			sum.AtMost += k.Count - single.Missed
			sum.Processes++
			if k.RetryAt.After(sum.RetryAt) {
				sum.RetryAt = k.RetryAt
			}
		}
	}
	a.Keys = []refusedKey{}
	for _, sum := range sums {
		sum.AtMost = max(sum.AtMost, sum.Refusals)
		a.Keys = append(a.Keys, *sum)
	}
	slices.SortFunc(a.Keys, func(x, y refusedKey) int {
		return cmp.Or(cmp.Compare(y.Refusals, x.Refusals), cmp.Compare(x.Policy, y.Policy), cmp.Compare(x.Label, y.Label), cmp.Compare(x.Limit, y.Limit))
	})
	return a
}

func printTop(c *command, a *ranking) error {
	if c.json {
		return printJSON(c.out, a)
	}
	now := time.Now()
	for from, reason := range a.Failed {
		fmt.Fprintf(c.out, "%s: %s\n", from, operator.Printable(reason))
	}
	if !a.Since.IsZero() {
		fmt.Fprintf(c.out, "refused since %s\n", operator.When(a.Since, now))
	}
	t := newTable(c.out, "REFUSALS", "BETWEEN", "POLICY", "LIMIT", "KEY", "PROCESSES", "FITS AGAIN")
	for _, k := range a.Keys {
		t.row(k.Refusals, fmt.Sprintf("%d-%d", k.AtLeast, k.AtMost), k.Policy, cmp.Or(k.Limit, "-"), operator.Printable(k.Label), k.Processes, operator.When(k.RetryAt, now))
	}
	return t.flush()
}
