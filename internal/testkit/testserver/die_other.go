//go:build !linux

package testserver

import "syscall"

// DieWithParent leaves a child process in our process group, so that Ctrl-C ends it too.
// Without a death signal, a killed program leaves its children behind.
func DieWithParent() *syscall.SysProcAttr { return nil }
