package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// keyPair is a PEM-encoded certificate with its key.
type keyPair struct{ cert, key []byte }

// authority signs all certificates of one control plane: those of the server and
// those of the users. Its key stays in the directory, so that tests can issue more.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  keyPair
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate CA key: %w", err)
	}
	template := certificateTemplate(pkix.Name{CommonName: "kube-testbed"})
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	pair, err := encodePair(der, key)
	if err != nil {
		return nil, fmt.Errorf("encode CA key: %w", err)
	}
	return &authority{cert, key, pair}, nil
}

// apiserverNames are those by which clients in a cluster know the apiserver.
var apiserverNames = []string{
	"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
}

// issueServer makes a server's certificate, valid on this machine and for the names
// given besides.
func (a *authority) issueServer(commonName string, names ...string) (keyPair, error) {
	template := certificateTemplate(pkix.Name{CommonName: commonName})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	template.DNSNames = append([]string{"localhost"}, names...)
	return a.issue(template)
}

// issueClient makes a client certificate; Kubernetes reads the user from the common
// name and the groups from the organizations.
func (a *authority) issueClient(user string, groups []string) (keyPair, error) {
	template := certificateTemplate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

func (a *authority) issue(template *x509.Certificate) (keyPair, error) {
	name := template.Subject.CommonName
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("generate key of %s: %w", name, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("sign certificate of %s: %w", name, err)
	}
	pair, err := encodePair(der, key)
	if err != nil {
		return keyPair{}, fmt.Errorf("encode key of %s: %w", name, err)
	}
	return pair, nil
}

func encodePair(cert []byte, key crypto.Signer) (keyPair, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{encodePEM("CERTIFICATE", cert), encodePEM("PRIVATE KEY", der)}, nil
}

// newServiceAccountKey makes the key that signs service account tokens. cert holds
// the public key.
func newServiceAccountKey() (keyPair, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return keyPair{}, fmt.Errorf("generate service account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return keyPair{}, fmt.Errorf("encode service account key: %w", err)
	}
	private := x509.MarshalPKCS1PrivateKey(key)
	return keyPair{encodePEM("PUBLIC KEY", public), encodePEM("RSA PRIVATE KEY", private)}, nil
}

func certificateTemplate(subject pkix.Name) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // the system's random source never fails
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour), // clocks of containers may lag
		NotAfter:     now.AddDate(10, 0, 0),
	}
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
