package main

import (
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// hangups are the SIGHUPs that the process is sent, which mean to read the configuration
// again. They never end the program and the requests in flight.
type hangups struct {
	log     *slog.Logger
	signals chan os.Signal

	mu sync.Mutex
	do func() error // nil while nothing is open
}

var errNotOpen = errors.New("the demo is starting or ending")

func catchHangups(log *slog.Logger) *hangups {
	h := &hangups{log: log, signals: make(chan os.Signal, 1)}
	signal.Notify(h.signals, syscall.SIGHUP)
	go func() {
		for range h.signals {
			if err := h.hangup(); err != nil {
				log.Warn("SIGHUP is ignored: " + err.Error())
			} else {
				log.Info("SIGHUP: the members were read again, and divide the quotas")
			}
		}
	}()
	return h
}

// reload has do called at each SIGHUP from now on.
func (h *hangups) reload(do func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.do = do
}

func (h *hangups) hangup() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.do == nil {
		return errNotOpen
	}
	return h.do()
}

func (h *hangups) stop() {
	signal.Stop(h.signals)
	close(h.signals)
}
