package main

import "log/slog"

// reread reads the configuration again, for what can change while the demo runs: the
// members that have shares, and the modes of policies.
func (b *backends) reread(log *slog.Logger) {
	if b.shares == nil && b.stack.Modes == nil {
		log.Warn("SIGHUP is ignored: it changes the members of shares and the modes of policies, and there are none; to change anything else, start the demo again")
		return
	}
	c, err := loadConfig(b.config.file)
	switch {
	case err != nil:
		log.Warn("SIGHUP: the configuration is wrong, nothing was changed", "error", err)
	case b.shares != nil:
		b.rereadMembers(c, log)
	default:
		b.rereadModes(c, log)
	}
}
