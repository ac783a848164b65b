//go:build !linux

package testserver

import "syscall"

// DieWithParent leaves a child process in our process group, so that Ctrl-C
// ends it too. Where there is no death signal, a program that is killed leaves
// its children behind.
func DieWithParent() *syscall.SysProcAttr { return nil }
