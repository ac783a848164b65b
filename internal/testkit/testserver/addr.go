package testserver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Ports that FreeAddr returns: below the ports that systems use for port 0 and for the local
// ends of connections, so that no program takes one while its server is down.
const (
	firstPort = 18000
	lastPort  = 31999
)

// FreeAddr returns a free loopback address, for a server that the test starts. No other test
// on this machine gets it in the next 14,000 calls.
func FreeAddr(t testing.TB) string {
	t.Helper()
	addr, err := FindAddr()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// FindAddr is like FreeAddr, for use outside tests.
func FindAddr() (addr string, err error) {
	// A name for each user, because another user's file can't be opened.
	name := filepath.Join(os.TempDir(), fmt.Sprintf("weir-port-%d", os.Getuid()))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close() // and unlock it
	if err := lock(file); err != nil {
		return "", fmt.Errorf("lock of %s: %w", name, err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return "", err
	}
	port, _ := strconv.Atoi(strings.TrimSpace(string(text))) // of the last call; 0 in a new file
	for range lastPort - firstPort + 1 {
		if port++; port < firstPort || port > lastPort {
			port = firstPort
		}
		addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue // in use
		}
		_ = l.Close() // nothing was accepted
		_, err = file.WriteAt(fmt.Appendf(nil, "%d\n", port), 0)
		return addr, err
	}
	return "", fmt.Errorf("no port from %d to %d is free", firstPort, lastPort)
}

// lock locks the file, once no other process has it locked.
func lock(file *os.File) error {
	for {
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
