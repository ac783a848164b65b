package division

import (
	"flag"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/testkit/figure"
)

var plots = flag.String("plots", "", "the directory to write the simulations' figures to, such as ../../../../docs/reference/consistency")

// ways are the ways to divide that are compared.
var ways = []struct {
	name   string
	class  figure.Class
	color  int
	static bool
}{
	{"even shares", figure.Plain, 0, true},
	{"proportional", figure.Ours, 0, false},
}

// The simulations of docs/reference/consistency.md: the used part of a quota, and the difference in the
// chances of requests, when the load moves.
func TestSequentialSimulations(t *testing.T) {
	const step = 500 * time.Millisecond
	used := figure.Panel{
		Title: "Three processes: what of the quota is used", Note: "% of 30 a second; 60 are offered: all at one, all at another, evenly, all at the third",
		Spans: []figure.Span{{Name: "one", From: 0, To: 15}, {Name: "another", From: 15, To: 30, Color: 1}, {Name: "third", From: 45, To: 60, Color: 2}},
	}
	unfair := figure.Panel{
		Title: "Three processes: the difference of chances", Note: "% between the processes where a request has the best and the worst chance; loads 70:20:10, 10:70:20 from 20 s, even from 40 s",
	}
	many := figure.Panel{
		Title: "300 processes: what of the quota is used", Note: "% of 3,000 a second; 6,000 are offered, evenly to 30 processes, to 30 others from 15 s, to all from 30 s; 0.1 % of messages are lost",
	}
	n := 10 // processes in the third; with the plots, 300
	if *plots != "" {
		n = 300
	}
	for _, w := range ways {
		l := newLoad(t, 3, 3, 300, 15, w.static)
		var series figure.Series
		line := func(s *figure.Series) {
			s.Name, s.Class, s.Color = w.name, w.class, w.color
		}
		line(&series)
		for _, streams := range [][]stream{{{0, 1, 60}}, {{1, 1, 60}}, {{0, 1, 20}, {1, 1, 20}, {2, 1, 20}}, {{2, 1, 60}}} {
			_, admitted := l.offer(15*time.Second, step, streams...)
			for _, each := range admitted {
				add(&series, step, 100*total([][]float64{each})/step.Seconds()/30)
			}
		}
		used.Series = append(used.Series, smooth(series, 3))
		t.Logf("%s, three processes: %.0f %% of the quota in all", w.name, mean(series.Y))
		for k, name := range []string{"one", "another", "even", "third"} {
			t.Logf("  %s: %.1f %% from the third second on", name, mean(series.Y[30*k+6:30*k+30]))
		}

		l = newLoad(t, 4, 3, 3000, 300, w.static)
		series = figure.Series{}
		line(&series)
		for _, rates := range [][3]float64{{420, 120, 60}, {60, 420, 120}, {200, 200, 200}} {
			asked, admitted := l.offer(20*time.Second, step, stream{0, 1, rates[0]}, stream{1, 1, rates[1]}, stream{2, 1, rates[2]})
			for i := range asked {
				best, worst := 0.0, 1.0
				for k := range asked[i] {
					if asked[i][k] > 0 {
						chance := admitted[i][k] / asked[i][k]
						best, worst = max(best, chance), min(worst, chance)
					}
				}
				add(&series, step, 100*(best-worst))
			}
		}
		unfair.Series = append(unfair.Series, smooth(series, 3))
		t.Logf("%s, difference of chances: %.0f %% in all, %.0f %% from the third second after each change on", w.name, mean(series.Y),
			(mean(series.Y[6:40])+mean(series.Y[46:80])+mean(series.Y[86:]))/3)

		l = newLoad(t, 5, n, int64(100*n), float64(5*n), w.static)
		l.loss = 0.001
		series = figure.Series{}
		line(&series)
		rounds, calls, bytes := l.rounds, l.calls, l.bytes
		for k := range 3 {
			var streams []stream
			for i := range n {
				if k == 2 || i/(n/10) == 4*k {
					streams = append(streams, stream{i, 1, 200})
				}
			}
			if k == 2 {
				for i := range streams {
					streams[i].rate = 20
				}
			}
			_, admitted := l.offer(15*time.Second, step, streams...)
			for _, each := range admitted {
				add(&series, step, 100*total([][]float64{each})/step.Seconds()/float64(10*n))
			}
		}
		many.Series = append(many.Series, smooth(series, 3))
		t.Logf("%s, many processes: %.0f %% in all; %.1f %%, %.1f %%, %.1f %% in the last five seconds of each load", w.name, mean(series.Y), mean(series.Y[20:30]), mean(series.Y[50:60]), mean(series.Y[80:]))
		t.Logf("  %d rounds; %.1f messages and %.0f kB a second for each process", l.rounds-rounds, float64(l.calls-calls)/45/float64(n), float64(l.bytes-bytes)/45/float64(n)/1000)
	}
	drawn := figure.Figure{
		Title:    "One quota, divided",
		Subtitle: "Simulated: token buckets, twice the quota offered, refresh 1 s, demand of the last 2 s",
		Columns:  1, PanelHeight: 200, Panels: []figure.Panel{used, unfair, many},
	}
	if err := drawn.Write(*plots, "shares"); err != nil {
		t.Fatal(err)
	}
}

// One client makes many requests to one process. Ten make a few each to another, and the quota
// is for all of them together. The same part of each client's requests is admitted.
func TestOneClientAndTen(t *testing.T) {
	for _, w := range ways {
		want := 20.0 // of 40, as 10 of 20
		if w.static {
			want = 10
		}
		l := newLoad(t, 6, 3, 300, 15, w.static)
		streams := []stream{{0, 100, 40}}
		for client := range uint64(10) {
			streams = append(streams, stream{1, 1 + client, 2})
		}
		l.offer(5*time.Second, time.Second, streams...)
		_, admitted := l.offer(30*time.Second, 30*time.Second, streams...)
		one, ten := admitted[0][0]/30, admitted[0][1]/300
		t.Logf("%s: the one 40 a second, admitted %.1f; the ten 2 a second, admitted %.2f each", w.name, one, ten)
		if math.Abs(one-want) > want/10 || math.Abs(ten-1) > 0.1 {
			t.Errorf("%s: %.1f and %.2f a second were admitted; want %.0f and 1", w.name, one, ten, want)
		}
	}
}

func add(s *figure.Series, step time.Duration, y float64) {
	s.X = append(s.X, (time.Duration(len(s.X)) * step).Seconds())
	s.Y = append(s.Y, y)
}

// smooth replaces each value of s by the mean of the last n values.
func smooth(s figure.Series, n int) figure.Series {
	y := make([]float64, len(s.Y))
	for i := range y {
		y[i] = mean(s.Y[max(i-n+1, 0) : i+1])
	}
	s.Y = y
	return s
}

func mean(all []float64) float64 {
	var sum float64
	for _, x := range all {
		sum += x
	}
	return math.Round(sum/float64(len(all))*100) / 100
}
