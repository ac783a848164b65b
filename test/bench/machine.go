package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
)

// cpuName returns the processor's name, or its architecture if the system does
// not report it.
func cpuName() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// loadAverage returns the load of the last minute, or "" if the system does not
// report it.
func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	load, _, _ := strings.Cut(string(data), " ")
	return load
}

// commit returns the checked-out commit of weir, or "unknown".
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// measured lists the modules with versions worth reporting.
var measured = []string{
	"github.com/didip/tollbooth/v8",
	"github.com/go-chi/httprate",
	"github.com/go-chi/httprate-redis",
	"github.com/go-redis/redis_rate/v10",
	"github.com/gomodule/redigo",
	"github.com/mennanov/limiters",
	"github.com/redis/go-redis/v9",
	"github.com/redis/rueidis",
	"github.com/redis/rueidis/rueidislimiter",
	"github.com/sethvargo/go-limiter",
	"github.com/sethvargo/go-redisstore",
	"github.com/throttled/throttled/v2",
	"github.com/ulule/limiter/v3",
	"golang.org/x/time",
}

// versions returns the versions of the measured modules in this build.
func versions() map[string]string {
	all := make(map[string]string)
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return all
	}
	for _, name := range measured {
		for _, dep := range info.Deps {
			if dep.Path == name {
				all[name] = dep.Version
			}
		}
	}
	return all
}
