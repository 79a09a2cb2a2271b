package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// layout names the files of one control plane's directory. It is the interface
// between up, its children and the scripts that use them.
type layout struct{ dir string }

// newLayout makes dir absolute: the paths end up in flags and kubeconfigs that are
// used from other working directories.
func newLayout(dir string) (layout, error) {
	if dir == "" {
		return layout{}, usagef("--dir is required")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, fmt.Errorf("resolve --dir: %w", err)
	}
	return layout{abs}, nil
}

func (l layout) path(name string) string { return filepath.Join(l.dir, name) }

const (
	readyFile        = "ready"
	urlFile          = "url"
	settingsFile     = "settings.json"
	tokensFile       = "tokens.csv"
	etcdDir          = "etcd"
	upPIDFile        = "up.pid"
	etcdPIDFile      = "etcd.pid"
	apiserverPIDFile = "apiserver.pid"
	etcdLog          = "etcd.log"
	apiserverLog     = "apiserver.log"
)

// settings is what must be the same on each start of one directory: clients hold
// the port in their configuration, etcd holds the peer URL in its data.
type settings struct {
	APIServerPort  int      `json:"apiserverPort"`
	EtcdPort       int      `json:"etcdPort"`
	EtcdPeerPort   int      `json:"etcdPeerPort"`
	APIServerFlags []string `json:"apiserverFlags,omitempty"`
}

func (s settings) apiserverURL() string { return "https://127.0.0.1:" + strconv.Itoa(s.APIServerPort) }
func (s settings) etcdURL() string      { return "http://127.0.0.1:" + strconv.Itoa(s.EtcdPort) }
func (s settings) etcdPeerURL() string  { return "http://127.0.0.1:" + strconv.Itoa(s.EtcdPeerPort) }

// loadSettings returns fs.ErrNotExist (wrapped) for a directory never brought up.
func (l layout) loadSettings() (settings, error) {
	var s settings
	data, err := os.ReadFile(l.path(settingsFile))
	if err != nil {
		return s, fmt.Errorf("read settings: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("parse %s: %w", l.path(settingsFile), err)
	}
	return s, nil
}

func (l layout) saveSettings(s settings) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	return l.write(settingsFile, append(data, '\n'), 0o644)
}

// write replaces a file in one step, so that a script waiting for it never reads
// half of it.
func (l layout) write(name string, data []byte, mode os.FileMode) error {
	temporary := l.path("." + name + ".new")
	if err := os.WriteFile(temporary, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Rename(temporary, l.path(name)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (l layout) remove(names ...string) error {
	for _, name := range names {
		if err := os.Remove(l.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove stale %s: %w", name, err)
		}
	}
	return nil
}

// Ports are taken from below the range that systems hand out to outgoing
// connections. Otherwise, while the apiserver is down between a kill and a restart,
// some client's connection could take its port and the restart would fail.
const firstPort, lastPort = 20000, 30000

// portLocks keeps the ports of this process from others that draw theirs before they
// are listened on: until it ends, for an apiserver may be down meanwhile.
var portLocks []*os.File

// lockPort says whether no other process has drawn the port.
func lockPort(port int) (bool, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("kube-testbed-ports-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return false, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, err
	}
	portLocks = append(portLocks, file)
	return true, nil
}

// freePorts returns n distinct loopback ports that nobody listens on now, or has drawn.
func freePorts(n int) ([]int, error) {
	var ports []int
	for attempt := 0; len(ports) < n; attempt++ {
		if attempt == 1000 {
			return nil, fmt.Errorf("no free loopback port found between %d and %d", firstPort, lastPort)
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		locked, err := lockPort(port)
		if err != nil {
			return nil, fmt.Errorf("lock port %d: %w", port, err)
		}
		if !locked {
			continue
		}
		listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		// Held until the end, so that no port is drawn twice.
		defer listener.Close()
		ports = append(ports, port)
	}
	return ports, nil
}
