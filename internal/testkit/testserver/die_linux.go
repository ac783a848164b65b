package testserver

import "syscall"

// DieWithParent returns attributes that make the kernel kill a child process when the thread
// that started it ends in any way, even by a panic or a SIGKILL: start it from a locked
// thread. A separate process group keeps Ctrl-C from the child, so that its parent can end
// first.
func DieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
