package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"

	// The registrations that the released kube-apiserver has.
	_ "time/tzdata"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

// runAPIServer is the kube-apiserver of one control plane directory, in the
// foreground. up starts it as a child; a test that killed that child starts it
// again by hand, with the same port and flags.
func runAPIServer(args []string) error {
	flags := flag.NewFlagSet("apiserver", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory of a control plane that is up")
	var extra stringList
	flags.Var(&extra, "apiserver-flag", "one more kube-apiserver `flag`, for this run only (repeatable)")
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	l, err := newLayout(*dir)
	if err != nil {
		return err
	}
	s, err := l.loadSettings()
	if err != nil {
		return fmt.Errorf("%w (run kube-testbed up first)", err)
	}
	if livePID(l.path(upPIDFile)) == 0 {
		return fmt.Errorf("no kube-testbed up is running for %s, so there is no etcd to serve", l.dir)
	}
	pid, err := claimPIDFile(l.path(apiserverPIDFile))
	if err != nil {
		return err
	}
	closeLog, err := copyStderrTo(l.path(apiserverLog))
	if err != nil {
		return err
	}
	go endWithUp(l)

	command := app.NewAPIServerCommand()
	command.SetArgs(append(apiserverFlags(l, s), extra...))
	code := cli.Run(command)
	pid.release()
	closeLog()
	os.Exit(code)
	return nil
}

// apiserverFlags is the whole configuration of the apiserver. It differs from a
// kubeadm cluster only where a control plane without controllers needs it: pods must
// be creatable without service accounts, and there is no Service to publish.
func apiserverFlags(l layout, s settings) []string {
	return append([]string{
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(s.APIServerPort),
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--cert-dir=" + l.dir,
		"--tls-cert-file=" + l.path("apiserver.crt"),
		"--tls-private-key-file=" + l.path("apiserver.key"),
		"--client-ca-file=" + l.path("ca.crt"),
		"--kubelet-certificate-authority=" + l.path("ca.crt"),
		"--kubelet-client-certificate=" + l.path("kubelet-client.crt"),
		"--kubelet-client-key=" + l.path("kubelet-client.key"),
		"--token-auth-file=" + l.path(tokensFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + l.path("service-account.pub"),
		"--service-account-signing-key-file=" + l.path("service-account.key"),
		"--authorization-mode=Node,RBAC",
		"--allow-privileged=true",
		"--disable-admission-plugins=ServiceAccount",
		"--etcd-servers=" + s.etcdURL(),
		"--max-requests-inflight=3000",
		"--max-mutating-requests-inflight=1000",
		"--profiling=false",
		// The flags given by the user come last, where they win over the above.
	}, s.APIServerFlags...)
}

// copyStderrTo makes everything logged appear in the log file as well as on stderr.
// As a child of up, stderr already is that file. The function returned waits until
// the last lines are written.
func copyStderrTo(path string) (func(), error) {
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open apiserver log: %w", err)
	}
	if same, err := sameFile(log, os.Stderr); err != nil || same {
		log.Close()
		return func() {}, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe for the apiserver log: %w", err)
	}
	terminal := os.Stderr
	os.Stderr = writer
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.MultiWriter(log, terminal), reader)
	}()
	return func() {
		os.Stderr = terminal
		writer.Close()
		<-done
		log.Close()
	}, nil
}

func sameFile(a, b *os.File) (bool, error) {
	infoA, err := a.Stat()
	if err != nil {
		return false, fmt.Errorf("stat log: %w", err)
	}
	infoB, err := b.Stat()
	if err != nil {
		return false, fmt.Errorf("stat stderr: %w", err)
	}
	return os.SameFile(infoA, infoB), nil
}

// endWithUp ends this process when up is gone. A child of up is killed by the kernel
// at that moment; one restarted by hand has another parent and watches for itself.
// It does not end gracefully: etcd went with up, and the apiserver would wait for it.
func endWithUp(l layout) {
	for livePID(l.path(upPIDFile)) != 0 {
		time.Sleep(500 * time.Millisecond)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// waitForTCP waits until something listens on the loopback port.
func waitForTCP(ctx context.Context, port int) error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return fmt.Errorf("wait for %s: %w (last: %w)", address, ctx.Err(), err)
		}
	}
}

// sleep reports whether the whole duration passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
