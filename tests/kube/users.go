package main

import (
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// user is somebody the tests act as. Its kubeconfig authenticates by token or by
// client certificate, because a proxy meets the two in different ways.
type user struct {
	file        string // base name of its files in the directory
	name        string
	groups      []string
	token, cert bool
}

// users are named after what they may do; createObjects gives them their rights.
var users = []user{
	{file: "admin", name: "admin", groups: []string{"system:masters"}, token: true, cert: true},
	{file: "alice", name: "alice", token: true},
	{file: "bob", name: "bob", token: true},
	{file: "viewer", name: "viewer", cert: true},
	{file: "node-n1", name: "system:node:n1", groups: []string{"system:nodes"}, cert: true},
	{file: "proxy", name: "proxy", token: true},
	{file: "impersonator", name: "impersonator", token: true},
}

// writeCredentials writes all keys, certificates, tokens and kubeconfigs of a new
// control plane.
func writeCredentials(l layout, server string) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	if err := l.writeKeyPair("ca", ca.pem); err != nil {
		return err
	}
	if err := writeServerPairs(l, ca); err != nil {
		return err
	}
	accounts, err := newServiceAccountKey()
	if err != nil {
		return err
	}
	if err := l.write("service-account.pub", accounts.cert, 0o644); err != nil {
		return err
	}
	if err := l.write("service-account.key", accounts.key, 0o600); err != nil {
		return err
	}
	var tokens strings.Builder
	table := csv.NewWriter(&tokens)
	for _, u := range users {
		token, err := writeUser(l, ca, server, u)
		if err != nil {
			return fmt.Errorf("credentials of %s: %w", u.file, err)
		}
		if token != "" {
			_ = table.Write([]string{token, u.name, "uid-" + u.file, strings.Join(u.groups, ",")})
		}
	}
	table.Flush()
	return l.write(tokensFile, []byte(tokens.String()), 0o600)
}

// writeServerPairs writes what the apiserver shows its clients, what kubelets show the
// apiserver, and what it shows kubelets.
func writeServerPairs(l layout, ca *authority) error {
	apiserver, err := ca.issueServer("kube-apiserver", apiserverNames...)
	if err != nil {
		return err
	}
	kubelet, err := ca.issueServer("kubelet")
	if err != nil {
		return err
	}
	client, err := ca.issueClient("kube-apiserver-kubelet-client", nil)
	if err != nil {
		return err
	}
	return errors.Join(
		l.writeKeyPair("apiserver", apiserver),
		l.writeKeyPair("kubelet", kubelet),
		l.writeKeyPair("kubelet-client", client),
	)
}

// writeUser writes one user's files and returns its token, if it has one. A
// kubeconfig holds one kind of credential only, the token if there is one, so that
// it is plain what a test authenticates with.
func writeUser(l layout, ca *authority, server string, u user) (string, error) {
	auth := clientcmdapi.NewAuthInfo()
	if u.cert {
		pair, err := ca.issueClient(u.name, u.groups)
		if err != nil {
			return "", err
		}
		if err := l.writeKeyPair(u.file, pair); err != nil {
			return "", err
		}
		auth.ClientCertificateData, auth.ClientKeyData = pair.cert, pair.key
	}
	if u.token {
		token := u.file + "-" + rand.Text()
		if err := l.write(u.file+".token", []byte(token+"\n"), 0o600); err != nil {
			return "", err
		}
		*auth = clientcmdapi.AuthInfo{Token: token}
	}
	cluster := clientcmdapi.NewCluster()
	cluster.Server = server
	cluster.CertificateAuthorityData = ca.pem.cert
	context := clientcmdapi.NewContext()
	context.Cluster, context.AuthInfo = "testbed", u.file
	config := clientcmdapi.NewConfig()
	config.Clusters["testbed"] = cluster
	config.AuthInfos[u.file] = auth
	config.Contexts["testbed"] = context
	config.CurrentContext = "testbed"
	data, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("encode kubeconfig: %w", err)
	}
	return auth.Token, l.write(u.file+".kubeconfig", data, 0o600)
}

func (l layout) writeKeyPair(name string, pair keyPair) error {
	if err := l.write(name+".crt", pair.cert, 0o644); err != nil {
		return err
	}
	return l.write(name+".key", pair.key, 0o600)
}

func newAdminClient(l layout) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", l.path("admin.kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("load admin kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make admin client: %w", err)
	}
	return client, nil
}
