package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A pidFile holds the process id of a running part of the control plane and is
// locked by that very process. The kernel drops the lock when the process ends, in
// whatever way, so a locked file always names a live process that is ours: no pid
// found in a stale file, and perhaps reused by a stranger, is ever signalled.
type pidFile struct{ file *os.File }

// claimPIDFile locks path and writes this process's id into it. It waits a moment
// for a previous holder that is just dying.
func claimPIDFile(path string) (*pidFile, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open pid file: %w", err)
	}
	deadline := time.Now().Add(3 * time.Second)
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			holder, _ := os.ReadFile(path)
			file.Close()
			return nil, fmt.Errorf("%s is held by the running process %s", path, strings.TrimSpace(string(holder)))
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := file.Truncate(0); err != nil {
		return nil, fmt.Errorf("truncate pid file: %w", err)
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, fmt.Errorf("write pid file: %w", err)
	}
	return &pidFile{file}, nil
}

// release empties the file before unlocking it. The file stays: removing it would
// let a successor lock a name that nobody else can see.
func (p *pidFile) release() {
	_ = p.file.Truncate(0)
	_ = p.file.Close()
}

// livePID returns the id of the process that holds path locked, or 0.
func livePID(path string) int {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	if syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		return 0
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0
	}
	return pid
}
