// Package realserver starts real servers for tests: each on a free loopback port, with its data in a temporary folder,
// and ended by its process id.
package realserver

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Bound is how long a wait may take before a test counts as broken. It is no measure.
const Bound = 60 * time.Second

// WaitFor waits until a condition holds.
func WaitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for until := time.Now().Add(Bound); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within %v: %s", Bound, what)
		}
	}
}

// Process is a program with its output, and the signals that tests send it.
type Process struct {
	command *exec.Cmd
	ended   chan struct{}
	err     error

	mu    sync.Mutex
	lines []string
}

// Start starts a program. It is killed at the end of the test, or if the test itself is killed.
func Start(t testing.TB, command *exec.Cmd) *Process {
	t.Helper()
	if command.Env == nil {
		command.Env = Environment()
	}
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = command.Stdout
	if err := command.Start(); err != nil {
		t.Fatalf("cannot start %s: %v", command.Path, err)
	}
	process := &Process{command: command, ended: make(chan struct{})}
	go func() {
		lines := bufio.NewScanner(output)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			process.mu.Lock()
			process.lines = append(process.lines, lines.Text())
			process.mu.Unlock()
		}
		process.err = command.Wait()
		close(process.ended)
	}()
	t.Cleanup(process.Kill)
	return process
}

// Environment is that of this process without what configures Solehold.
func Environment() []string {
	var ours []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SOLEHOLD_") {
			ours = append(ours, variable)
		}
	}
	return ours
}

// Lines is what it has written so far.
func (p *Process) Lines() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.lines...)
}

// WaitLine waits for a line that begins so, and returns the rest of it.
func (p *Process) WaitLine(t testing.TB, prefix string) string {
	t.Helper()
	rest := ""
	find := func() bool {
		for _, line := range p.Lines() {
			if after, isSo := strings.CutPrefix(line, prefix); isSo {
				rest = after
				return true
			}
		}
		return false
	}
	WaitFor(t, "a line that begins with "+prefix, func() bool {
		if find() {
			return true
		}
		if p.HasEnded() && !find() {
			t.Fatalf("%v ended before it wrote %q:\n%s", p.command.Args, prefix, strings.Join(p.Lines(), "\n"))
		}
		return false
	})
	return rest
}

// HasEnded reports whether it has ended, and all of its output is here.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Wait waits until it has ended.
func (p *Process) Wait(t testing.TB) error {
	t.Helper()
	WaitFor(t, "the end of "+p.command.Path, p.HasEnded)
	return p.err
}

// Signal sends it a signal.
func (p *Process) Signal(signal syscall.Signal) { _ = p.command.Process.Signal(signal) }

// Kill ends it by SIGKILL, and waits until it has ended.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

func (p *Process) end(signal syscall.Signal) {
	if !p.HasEnded() {
		p.Signal(syscall.SIGCONT)
		p.Signal(signal)
	}
	select {
	case <-p.ended:
	case <-time.After(Bound):
		p.Signal(syscall.SIGKILL)
		<-p.ended
	}
}
