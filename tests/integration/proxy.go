// This file becomes part of Kubernetes' package k8s.io/kubernetes/cmd/kube-apiserver/app/testing.
// run.py adds it with an overlay; nothing else compiles it.

package testing

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"sigs.k8s.io/yaml"
)

var addresses = regexp.MustCompile(`(?m)^(serving|metrics and health) on (https?://\S+)\n`)

// StartProxy starts the proxy $KUBE_FANOUT_BINARY in front of the server that config names, and points config at the
// proxy. The returned function stops the proxy. Without the variable StartProxy does nothing.
func StartProxy(config *restclient.Config, server *options.ServerRunOptions) (func(), error) {
	binary := os.Getenv("KUBE_FANOUT_BINARY")
	if binary == "" {
		return func() {}, nil
	}
	dir, err := os.MkdirTemp(os.Getenv("KUBE_FANOUT_DIR"), "proxy-")
	if err != nil {
		return nil, err
	}
	path := func(name string) string { return filepath.Join(dir, name) }

	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["server"] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		TLSServerName:            config.ServerName,
		CertificateAuthority:     config.CAFile,
		CertificateAuthorityData: config.CAData,
	}
	kubeconfig.AuthInfos["loopback"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	kubeconfig.Contexts["proxy"] = &clientcmdapi.Context{Cluster: "server", AuthInfo: "loopback"}
	kubeconfig.CurrentContext = "proxy"
	if err := clientcmd.WriteToFile(*kubeconfig, path("kubeconfig")); err != nil {
		return nil, err
	}
	// The callers are those of the server: their tokens, and the certificates of its authority.
	delegated := map[string]any{}
	if clientCA := server.Authentication.ClientCert.ClientCA; clientCA != "" {
		delegated["clientCA"] = clientCA
		delegated["impersonator"] = path("kubeconfig")
	}
	settings, err := yaml.Marshal(map[string]any{
		"upstream":  map[string]any{"kubeconfig": path("kubeconfig")},
		"listen":    "127.0.0.1:0",
		"admin":     "127.0.0.1:0",
		"tls":       map[string]any{"selfSigned": true, "selfSignedOut": path("ca.crt")},
		"auth":      "delegated",
		"delegated": delegated,
		"feeds":     map[string]any{"sensitive": []string{"secrets"}},
		"limits": map[string]any{
			"minRequestTimeout": fmt.Sprintf("%ds", server.GenericServerRunOptions.MinRequestTimeout),
		},
	})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path("config.yaml"), settings, 0o600); err != nil {
		return nil, err
	}

	log, err := os.Create(path("log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command := exec.Command(binary, "serve", "--config", path("config.yaml"))
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		return nil, err
	}
	kill := func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	bound := map[string]string{}
	listens := func(context.Context) (bool, error) {
		text, err := os.ReadFile(path("log"))
		for _, match := range addresses.FindAllSubmatch(text, -1) {
			bound[string(match[1])] = string(match[2])
		}
		return len(bound) == 2, err
	}
	err = wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, time.Minute, true, listens)
	if err != nil {
		kill()
		return nil, fmt.Errorf("%s did not start, see %s: %w", binary, path("log"), err)
	}
	authority, err := os.ReadFile(path("ca.crt"))
	if err != nil {
		kill()
		return nil, err
	}
	config.Host = bound["serving"]
	config.TLSClientConfig = restclient.TLSClientConfig{CAData: authority, NextProtos: config.NextProtos}
	return func() {
		defer kill()
		// What the proxy answered, and from where: run.py adds it up.
		response, err := http.Get(bound["metrics and health"] + "/metrics")
		if err != nil {
			return
		}
		defer response.Body.Close()
		var metrics bytes.Buffer
		_, _ = metrics.ReadFrom(response.Body)
		_ = os.WriteFile(path("metrics"), metrics.Bytes(), 0o600)
	}, nil
}
