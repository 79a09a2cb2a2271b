package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/apimachinery/pkg/util/proxy"
	translator "k8s.io/apiserver/pkg/util/proxy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

// runPortForward is, of all that a node has, what kubectl port-forward needs: a
// kubelet's server of /portForward, and a container runtime's streaming server, to
// which a kubelet passes such requests on. Both are of the modules that kubelets and
// runtimes are made of. The pods have no network but addresses on this machine.
func runPortForward(args []string) error {
	flags := flag.NewFlagSet("portforward", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory of a control plane, for its certificates")
	listen := flags.String("listen", "127.0.0.1:0", "address of the kubelet's server")
	ports := podPorts{}
	flags.Func("pod", "`NAMESPACE/NAME:PORT=ADDRESS`: where a port of a pod leads (repeatable)", ports.add)
	if err := parseFlags(flags, args); err != nil {
		return err
	}
	l, err := newLayout(*dir)
	if err != nil {
		return err
	}
	serving, err := kubeletTLS(l)
	if err != nil {
		return err
	}
	// The runtime's own server is without TLS, and on the node's loopback address.
	runtimeListener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the runtime: %w", err)
	}
	config := streaming.DefaultConfig
	config.BaseURL = &url.URL{Scheme: "http", Host: runtimeListener.Addr().String(), Path: "/"}
	runtime, err := streaming.NewServer(config, &podRuntime{ports: ports})
	if err != nil {
		return fmt.Errorf("make the runtime's streaming server: %w", err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/portForward/{namespace}/{name}", &portForwardHandler{ports: ports, runtime: runtime})
	kubelet := &http.Server{Handler: mux, TLSConfig: serving}
	ended := make(chan error, 2)
	go func() { ended <- http.Serve(runtimeListener, runtime) }()
	go func() { ended <- kubelet.ServeTLS(listener, "", "") }()
	fmt.Printf("serving on %s\n", listener.Addr())
	return <-ended
}

// kubeletTLS has callers show a certificate of the control plane's authority. A kubelet
// goes on to ask the apiserver what the caller may; this one lets all of them.
func kubeletTLS(l layout) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(l.path("kubelet.crt"), l.path("kubelet.key"))
	if err != nil {
		return nil, fmt.Errorf("load the kubelet's certificate: %w", err)
	}
	pem, err := os.ReadFile(l.path("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", l.path("ca.crt"))
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// podPorts are the addresses of each pod's ports, by the pod's NAMESPACE/NAME.
type podPorts map[string]map[string]string

func (p podPorts) add(text string) error {
	from, address, ok := strings.Cut(text, "=")
	pod, port, ported := strings.Cut(from, ":")
	if !ok || !ported || strings.Count(pod, "/") != 1 {
		return errors.New("want NAMESPACE/NAME:PORT=ADDRESS")
	}
	if p[pod] == nil {
		p[pod] = map[string]string{}
	}
	p[pod][port] = address
	return nil
}

// portForwardHandler does what the kubelet's getPortForward does
// (k8s.io/kubernetes/pkg/kubelet/server), which cannot be had without the rest of the
// kubelet. It leaves out what no client sends any more: WebSockets with a channel for
// each port.
type portForwardHandler struct {
	ports   podPorts
	runtime streaming.Server
}

func (h *portForwardHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	pod := req.PathValue("namespace") + "/" + req.PathValue("name")
	if h.ports[pod] == nil {
		http.Error(w, "pod does not exist", http.StatusNotFound)
		return
	}
	isTunnel := wsstream.IsWebSocketRequestWithTunnelingProtocol(req)
	fmt.Printf("port-forward to %s, upgrade to %s\n", pod, req.Header.Get("Upgrade"))
	prepared, err := h.runtime.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	location, err := url.Parse(prepared.Url)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var handler http.Handler = proxy.NewUpgradeAwareHandler(location, nil, false, true, proxyResponder{})
	if isTunnel {
		handler = translator.NewTunnelingHandler(handler)
	}
	handler.ServeHTTP(w, req)
}

// proxyResponder answers as the kubelet's does.
type proxyResponder struct{}

func (proxyResponder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// podRuntime is a container runtime that has nothing but ports of pods.
type podRuntime struct {
	// Exec and Attach, for which nobody asks.
	streaming.Runtime
	ports podPorts
}

// closeDelay is how long the second direction has when the first has ended, as in
// containerd.
const closeDelay = time.Second

// PortForward connects a stream to a port of a pod until both directions are through.
func (r *podRuntime) PortForward(ctx context.Context, pod string, port int32, stream io.ReadWriteCloser) error {
	address, ok := r.ports[pod][fmt.Sprint(port)]
	if !ok {
		return fmt.Errorf("dial port %d: connection refused", port)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("dial port %d: %w", port, err)
	}
	defer conn.Close()
	done := make(chan error, 2)
	transfer := func(to io.Writer, from io.Reader) {
		_, err := io.Copy(to, from)
		done <- err
	}
	go transfer(stream, conn)
	go transfer(conn, stream)
	err = <-done
	select {
	case second := <-done:
		return errors.Join(err, second)
	case <-time.After(closeDelay):
		return err
	}
}
