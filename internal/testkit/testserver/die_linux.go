package testserver

import "syscall"

// DieWithParent returns what makes the kernel kill a child process when the
// thread that started it ends in any way, a panic or a SIGKILL too: start it
// from a locked one. A separate process group keeps Ctrl-C from the child,
// so that the program that uses it can end first.
func DieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
