package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
)

// A dialer makes connections that each are exactly one TCP connection. An
// http.Transport opens and shares connections as it likes; what a proxy does per
// connection can only be tested when that is fixed.
type dialer struct {
	config    *rest.Config
	base      *url.URL
	transport *http.Transport
	dialed    atomic.Int64
}

// newDialer takes protocol h1 or h2. The latter is negotiated over TLS and assumed
// ("prior knowledge") without. window, if not 0, bounds what the client takes in for a
// watch that is not read: the flow-control window of a stream in HTTP/2, the socket's
// receive buffer in HTTP/1.
func newDialer(config *rest.Config, protocol string, window int) (*dialer, error) {
	base, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("server URL: %w", err)
	}
	if base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("server URL %q: must start with http:// or https://", config.Host)
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("TLS configuration: %w", err)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(protocol == "h1")
	protocols.SetHTTP2(protocol == "h2" && base.Scheme == "https")
	protocols.SetUnencryptedHTTP2(protocol == "h2" && base.Scheme == "http")
	d := &dialer{config: config, base: base}
	netDialer := &net.Dialer{Timeout: 30 * time.Second}
	if window > 0 && protocol == "h1" {
		netDialer.Control = func(_, _ string, raw syscall.RawConn) error {
			var optionErr error
			err := raw.Control(func(fd uintptr) {
				optionErr = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, window)
			})
			return errors.Join(err, optionErr)
		}
	}
	d.transport = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			d.dialed.Add(1)
			return netDialer.DialContext(ctx, network, address)
		},
		TLSClientConfig:    cleanTLS(tlsConfig),
		Protocols:          protocols,
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{MaxReceiveBufferPerStream: window},
	}
	return d, nil
}

// cleanTLS leaves the choice of the protocol to the transport.
func cleanTLS(config *tls.Config) *tls.Config {
	if config == nil {
		return nil
	}
	config = config.Clone()
	config.NextProtos = nil
	return config
}

// connection is one TCP connection that carries one watch in HTTP/1 and many in
// HTTP/2.
type connection struct {
	conn    *http.ClientConn
	trip    http.RoundTripper // conn, with the credentials added
	base    *url.URL
	mutex   sync.Mutex
	settled bool // a first response arrived, so the server's limits are known
}

func (d *dialer) dial(ctx context.Context) (*connection, error) {
	address := d.base.Host
	if d.base.Port() == "" {
		port := map[string]string{"http": "80", "https": "443"}[d.base.Scheme]
		address = net.JoinHostPort(d.base.Hostname(), port)
	}
	conn, err := d.transport.NewClientConn(ctx, d.base.Scheme, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", d.base.Host, err)
	}
	trip, err := rest.HTTPWrappersForConfig(d.config, conn)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("credentials: %w", err)
	}
	return &connection{conn: conn, trip: trip, base: d.base}, nil
}

// get sends one request on this connection. It fails, rather than wait, when the
// server allows no further request on it.
func (c *connection) get(ctx context.Context, path, query, accept string) (*http.Response, error) {
	target := *c.base
	target.Path = strings.TrimSuffix(target.Path, "/") + path
	target.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("User-Agent", "kube-testbed-drive")
	c.mutex.Lock()
	if c.settled {
		c.mutex.Unlock()
	} else {
		// The first request goes alone: only its response tells the limits.
		defer c.mutex.Unlock()
		c.settled = true
	}
	if err := c.conn.Reserve(); err != nil {
		return nil, fmt.Errorf("the connection takes no further request (use more connections?): %w", err)
	}
	response, err := c.trip.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return response, nil
}
