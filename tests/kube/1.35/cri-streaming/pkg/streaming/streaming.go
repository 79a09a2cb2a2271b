// Package streaming has what the test bed uses of a later k8s.io/cri-streaming.
package streaming

import "k8s.io/kubelet/pkg/cri/streaming"

type (
	// Runtime executes commands in containers and connects streams to their ports.
	Runtime = streaming.Runtime
	// Server serves such streams.
	Server = streaming.Server
)

var (
	// DefaultConfig is the configuration of a server without its address.
	DefaultConfig = streaming.DefaultConfig
	// NewServer makes a server.
	NewServer = streaming.NewServer
)
