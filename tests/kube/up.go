package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
)

// runUp starts the control plane of one directory and runs until it is told to stop.
// It deliberately restarts nothing: what happens while the apiserver is dead is what
// the tests are about.
func runUp(args []string) error {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory for certificates, kubeconfigs, data and logs; made if missing")
	timeout := flags.Duration("timeout", 3*time.Minute, "how long to wait for the control plane to be ready")
	var extra stringList
	flags.Var(&extra, "apiserver-flag", "one more kube-apiserver `flag` such as --event-ttl=10m (repeatable; remembered in the directory)")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	l, err := newLayout(*dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fmt.Errorf("make --dir: %w", err)
	}
	pid, err := claimPIDFile(l.path(upPIDFile))
	if err != nil {
		return err
	}
	defer pid.release()
	// See startChild. This goroutine lasts as long as the process.
	runtime.LockOSThread()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	s, err := prepare(l, extra)
	if err != nil {
		return err
	}
	plane := &controlPlane{layout: l, settings: s}
	defer plane.stop()
	started := time.Now()
	starting, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := plane.start(starting); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop while starting
		}
		return err
	}
	fmt.Printf("ready after %.1fs: %s\n", time.Since(started).Seconds(), s.apiserverURL())
	plane.run(ctx)
	return nil
}

// prepare makes the directory complete: settings, certificates, users. What an
// earlier up left is kept, so that its clients still fit.
func prepare(l layout, extra []string) (settings, error) {
	if err := l.remove(readyFile); err != nil {
		return settings{}, err
	}
	s, err := l.loadSettings()
	if errors.Is(err, fs.ErrNotExist) {
		ports, err := freePorts(3)
		if err != nil {
			return s, err
		}
		s = settings{APIServerPort: ports[0], EtcdPort: ports[1], EtcdPeerPort: ports[2]}
		if err := writeCredentials(l, s.apiserverURL()); err != nil {
			return s, err
		}
		if err := l.write(urlFile, []byte(s.apiserverURL()+"\n"), 0o644); err != nil {
			return s, err
		}
	} else if err != nil {
		return s, err
	}
	if len(extra) > 0 {
		s.APIServerFlags = extra
	}
	// Written last: settings mark a directory as complete.
	return s, l.saveSettings(s)
}

// controlPlane is the running etcd and apiserver of one directory.
type controlPlane struct {
	layout
	settings
	etcd, apiserver *child
}

func (p *controlPlane) start(ctx context.Context) error {
	var err error
	if p.etcd, err = startChild(p.layout, "etcd", etcdLog); err != nil {
		return err
	}
	if err := p.etcd.await(ctx, func(ctx context.Context) error { return waitForTCP(ctx, p.EtcdPort) }); err != nil {
		return fmt.Errorf("%w; see %s", err, p.path(etcdLog))
	}
	if p.apiserver, err = startChild(p.layout, "apiserver", apiserverLog); err != nil {
		return err
	}
	client, err := newAdminClient(p.layout)
	if err != nil {
		return err
	}
	ready := func(ctx context.Context) error { return waitForReady(ctx, client) }
	if err := p.apiserver.await(ctx, ready); err != nil {
		return fmt.Errorf("%w; see %s", err, p.path(apiserverLog))
	}
	if err := createObjects(ctx, client); err != nil {
		return err
	}
	return p.write(readyFile, []byte(p.apiserverURL()+"\n"), 0o644)
}

// await runs a wait for the child to be ready and cuts it short when the child ends.
func (c *child) await(ctx context.Context, wait func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- wait(ctx) }()
	select {
	case err := <-result:
		return err
	case <-c.done:
		return fmt.Errorf("%s ended while starting (%s)", c.name, c.cmd.ProcessState)
	}
}

func waitForReady(ctx context.Context, client kubernetes.Interface) error {
	for {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			return nil
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return fmt.Errorf("wait for /readyz: %w (last: %w)", ctx.Err(), err)
		}
	}
}

// run reports the death of a child, but leaves the rest running until ctx ends.
func (p *controlPlane) run(ctx context.Context) {
	etcdDone, apiserverDone := p.etcd.done, p.apiserver.done
	for {
		select {
		case <-ctx.Done():
			return
		case <-etcdDone:
			fmt.Fprintf(os.Stderr, "kube-testbed: etcd ended (%s)\n", p.etcd.cmd.ProcessState)
			etcdDone = nil
		case <-apiserverDone:
			fmt.Fprintf(os.Stderr, "kube-testbed: apiserver ended (%s); not restarted\n", p.apiserver.cmd.ProcessState)
			apiserverDone = nil
		}
	}
}

// stop ends the apiserver before the etcd it needs to end well.
func (p *controlPlane) stop() {
	_ = p.remove(readyFile)
	p.apiserver.stop()
	stopHolder(p.path(apiserverPIDFile))
	p.etcd.stop()
}
