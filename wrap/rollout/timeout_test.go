package rollout

import (
	"testing"
	"time"
)

// A process that was paused finds its timer expired, and continues to wait.
func TestPauseIsNoHang(t *testing.T) {
	for range 100 {
		p := timeout{timer: time.NewTimer(0), step: time.Hour, steps: 2}
		answered := make(chan int)
		go func() { answered <- 7 }()
		if value, ok := receive(answered, &p); value != 7 || !ok {
			t.Fatalf("got %d, %t; want 7", value, ok)
		}
	}
}

func TestPatienceEnds(t *testing.T) {
	p := timeout{timer: time.NewTimer(0), step: 1, steps: 4}
	if _, ok := receive(make(chan int), &p); ok || p.steps != 0 {
		t.Errorf("got %t with %d steps left, want false with none", ok, p.steps)
	}
}
