package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A child is a subcommand of this binary that up runs as a process of its own, so
// that a test can kill it.
type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and been reaped
}

// startChild must be called on the locked thread of up: the kernel's parent-death
// signal fires when the thread that started the child ends, not the process.
func startChild(l layout, name, logName string) (*child, error) {
	log, err := os.OpenFile(l.path(logName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()
	cmd := &exec.Cmd{
		// This very binary, even if its path has been rebuilt since.
		Path:   "/proc/self/exe",
		Args:   []string{os.Args[0], name, "--dir", l.dir},
		Dir:    l.dir,
		Stdout: log,
		Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{
			Pdeathsig: syscall.SIGKILL,
			// Out of the terminal's process group: on Ctrl-C, up decides the order.
			Setpgid: true,
		},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	c := &child{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_ = cmd.Wait()
	}()
	return c, nil
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

const stopGrace = 15 * time.Second

// stop ends the child, by force if it does not go by itself.
func (c *child) stop() {
	if c == nil || c.ended() {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(stopGrace):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// stopHolder ends the process that holds a pid file and that is nobody's child here:
// an apiserver restarted by hand.
func stopHolder(path string) {
	signals := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}
	for _, signal := range signals {
		pid := livePID(path)
		if pid == 0 {
			return
		}
		_ = syscall.Kill(pid, signal)
		for deadline := time.Now().Add(stopGrace); time.Now().Before(deadline); {
			if livePID(path) != pid {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}
