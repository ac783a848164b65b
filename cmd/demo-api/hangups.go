package main

import (
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// hangups handles SIGHUP, which has the process read the configuration again. SIGHUP never
// ends the program or the requests in flight.
type hangups struct {
	log     *slog.Logger
	signals chan os.Signal

	mu sync.Mutex
	do func() error // nil while nothing is open
}

func catchHangups(log *slog.Logger) *hangups {
	h := &hangups{log: log, signals: make(chan os.Signal, 1)}
	signal.Notify(h.signals, syscall.SIGHUP)
	go func() {
		for range h.signals {
			h.hangup()
		}
	}()
	return h
}

// reread sets the function that is called at each SIGHUP from now on.
func (h *hangups) reread(do func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do = do
}

func (h *hangups) hangup() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.do == nil {
		h.log.Warn("SIGHUP is ignored: there is no configuration, or the demo is starting or ending")
		return
	}
	if err := h.do(); err != nil {
		h.log.Warn("SIGHUP: nothing was changed", "error", err)
	}
}

func (h *hangups) stop() {
	signal.Stop(h.signals)
	close(h.signals)
}
