package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// runEtcd is the etcd of one control plane directory: a single member on loopback
// that keeps its data from one start to the next.
func runEtcd(args []string) error {
	flags := flag.NewFlagSet("etcd", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory of the control plane")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	l, err := newLayout(*dir)
	if err != nil {
		return err
	}
	s, err := l.loadSettings()
	if err != nil {
		return err
	}
	pid, err := claimPIDFile(l.path(etcdPIDFile))
	if err != nil {
		return err
	}
	defer pid.release()

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)

	config, err := etcdConfig(l, s)
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	defer server.Close()
	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return fmt.Errorf("etcd listener: %w", err)
	case <-server.Server.StopNotify():
		return errors.New("etcd stopped by itself")
	}
}

// etcdConfig trades durability for speed, which a throw-away control plane can
// afford: with the page cache intact, even a killed etcd loses nothing.
func etcdConfig(l layout, s settings) (*embed.Config, error) {
	client, err := url.Parse(s.etcdURL())
	if err != nil {
		return nil, fmt.Errorf("etcd client URL: %w", err)
	}
	peer, err := url.Parse(s.etcdPeerURL())
	if err != nil {
		return nil, fmt.Errorf("etcd peer URL: %w", err)
	}
	config := embed.NewConfig()
	config.Name = "testbed"
	config.Dir = l.path(etcdDir)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.UnsafeNoFsync = true
	config.QuotaBackendBytes = 4 << 30
	// A single member elects itself; only the wait for it can be shortened.
	config.TickMs, config.ElectionMs = 50, 250
	// As kubeadm sets it: keeps the apiserver's watch caches of idle resources fresh.
	config.WatchProgressNotifyInterval = 5 * time.Second
	config.LogLevel = "warn"
	config.LogOutputs = []string{"stderr"}
	return config, nil
}
