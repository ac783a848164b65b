// Package testserver starts private Redis and Memcached servers: on loopback, on free ports,
// with nothing on disk except a temporary directory. They end with the program that started
// them. The programs are the first redis-server and memcached on the PATH; to test another
// server, put it there under that name.
//
// Tests call [Redis], [RedisReplica], [RedisTLS], [Sentinel], [Cluster] and [Memcached],
// which clean up after themselves and fail the test if a server is not installed.
// Without a test, as in a TestMain, call [StartRedis] and its like, and Stop.
package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute     // to answer; 15 ms is usual
	agreeTimeout = 3 * time.Minute // for servers to agree: an election on a busy machine may need several tries
	askTimeout   = 20 * time.Second
	pollEvery    = 2 * time.Millisecond
	portTries    = 20
)

// Server is a server process that this program started.
type Server struct {
	// Addr is the address that it listens on, such as "127.0.0.1:41234". It survives a
	// Restart.
	Addr string

	command func(port, dir string) *exec.Cmd
	// answers returns nil if the server at addr is process pid.
	// Another program may have taken the port after it was found to be free.
	answers func(addr string, pid int) error

	mu  sync.Mutex
	dir string
	run *run // nil once killed
}

// run is one run of the process.
type run struct {
	pid    int
	exited chan struct{} // closed after the process has been waited for
}

func start(program string, command func(port, dir string) *exec.Cmd, answers func(string, int) error) (*Server, error) {
	if _, err := exec.LookPath(program); err != nil {
		return nil, fmt.Errorf("%s is not installed; install it with `make servers`, or on Debian and Ubuntu: apt-get install redis-server memcached", program)
	}
	dir, err := os.MkdirTemp("", "weir-"+program+"-")
	if err != nil {
		return nil, err
	}
	s := &Server{command: command, answers: answers, dir: dir}
	for range portTries {
		if s.Addr, err = FindAddr(); err != nil {
			break
		}
		if err = s.launch(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Pid returns the process id, or 0 if the server does not run.
func (s *Server) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil {
		return 0
	}
	return s.run.pid
}

// Kill ends the process like a crash, and returns when it has ended. Its counts and scripts
// are lost. Restart brings the server back at the same address. Kill does nothing if the
// server does not run.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

func (s *Server) kill() {
	if s.run == nil {
		return
	}
	_ = syscall.Kill(s.run.pid, syscall.SIGKILL) // works on a paused process too; fails only if it has ended
	<-s.run.exited
	s.run = nil
}

// Stop kills the server and removes its files. A second call does nothing.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	_ = os.RemoveAll(s.dir)
}

// Pause freezes the process: it accepts connections but does not answer, like a hung host.
// Pause returns when all of the process's threads have stopped.
func (s *Server) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run == nil || syscall.Kill(s.run.pid, syscall.SIGSTOP) != nil {
		return
	}
	// The signal alone is not enough: the process may still answer a request that is sent
	// right after it.
	for {
		if _, err := syscall.Wait4(s.run.pid, nil, syscall.WUNTRACED, nil); err != syscall.EINTR {
			return
		}
	}
}

// Resume lets a paused process continue. It then answers the requests that it got while
// paused.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.run != nil {
		_ = syscall.Kill(s.run.pid, syscall.SIGCONT) // fails only if it has ended
	}
}

// restart kills the server if it runs, and starts it at the same address.
func (s *Server) restart() error {
	s.mu.Lock()
	s.kill()
	err := os.MkdirAll(s.dir, 0o700) // Stop removed it
	s.mu.Unlock()
	if err != nil {
		return err
	}
	// Another program may hold the port for a moment.
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(pollEvery) {
		if err := s.launch(); !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
	}
}

var errPortTaken = errors.New("port is taken")

// launch starts the process and returns when it answers.
func (s *Server) launch() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	_, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	cmd := s.command(port, s.dir)
	logName := filepath.Join(s.dir, "log")
	log, err := os.Create(logName)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout = log // a file, not a buffer: with a pipe, Wait would
	cmd.Stderr = log // wait for the children of the process too
	cmd.SysProcAttr = DieWithParent()
	if s.run, err = spawn(cmd); err != nil {
		return err
	}

	for deadline := time.Now().Add(startTimeout); ; {
		if err = s.answers(s.Addr, s.run.pid); err == nil {
			return nil
		}
		select {
		case <-s.run.exited:
			s.run = nil
			return s.startError(cmd, logName, "exited at once")
		case <-time.After(pollEvery):
		}
		if time.Now().After(deadline) {
			s.kill()
			return s.startError(cmd, logName, fmt.Sprintf("did not answer within %v (%v)", startTimeout, err))
		}
	}
}

func (s *Server) startError(cmd *exec.Cmd, logName, program string) error {
	output, _ := os.ReadFile(logName) // without it the rest still helps
	if bytes.Contains(bytes.ToLower(output), []byte("address already in use")) {
		return fmt.Errorf("%s: %w", s.Addr, errPortTaken)
	}
	return fmt.Errorf("%s on %s %s; it said:\n%s", filepath.Base(cmd.Path), s.Addr, program, output)
}

// spawn starts cmd and waits for it on one locked thread: Linux sends the parent's death
// signal when the thread that forked ends, not the process.
func spawn(cmd *exec.Cmd) (*run, error) {
	r := &run{exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		if err == nil {
			r.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // "signal: killed" is how they all end
			close(r.exited)
		}
	}()
	return r, <-started
}

// ask sends a line to addr. It returns the text of the answer between field and the end of its
// line.
func ask(addr, question, field string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, askTimeout)
	if err != nil {
		return "", err
	}
	return askOn(conn, question, field)
}

// askOn is ask on a connection, which it closes.
func askOn(conn net.Conn, question, field string) (string, error) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(question + "\r\n")); err != nil {
		return "", err
	}
	var answer []byte
	for {
		if _, after, ok := bytes.Cut(answer, []byte(field)); ok {
			if value, _, ok := bytes.Cut(after, []byte("\r\n")); ok {
				return string(value), nil
			}
		}
		if bytes.HasPrefix(answer, []byte("-")) && bytes.HasSuffix(answer, []byte("\r\n")) {
			return "", errors.New(string(bytes.TrimSpace(answer)))
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			return "", err
		}
		answer = append(answer, buf[:n]...)
	}
}

// isProcess returns nil if value, a server's own process id, is pid.
func isProcess(value string, pid int) error {
	if value != strconv.Itoa(pid) {
		return fmt.Errorf("process %s answers, not ours, which is %d", value, pid)
	}
	return nil
}
