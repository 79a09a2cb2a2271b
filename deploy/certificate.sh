#!/usr/bin/env bash
# Has the cluster sign a serving certificate for the names and addresses of a proxy's Service, and writes it to the
# Secret that its pods mount: deploy/certificate.sh SERVICE [NAMESPACE]. Run it again before the certificate expires; it
# says when. Running proxies read the new one.
#
# The signer is kubernetes.io/kubelet-serving, the only one of Kubernetes for servers (R-CLIENT-8), or SIGNER, such as
# beta.eks.amazonaws.com/app-serving. The certificate can serve, and authenticates no client. Whether pods trust it by
# their ca.crt depends on the cluster; the script fails if they do not.
# Needs openssl 3, and a kubectl that may approve requests of this signer.
set -euo pipefail
service=$1 namespace=${2:-kube-fanout} signer=${SIGNER:-kubernetes.io/kubelet-serving}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
umask 077

name=$service.$namespace
request=kube-fanout-$service-$(date +%s)
names=DNS:$name.svc,DNS:$name.svc.cluster.local
for address in $(kubectl -n "$namespace" get service "$service" -o jsonpath='{.spec.clusterIPs[*]}'); do
  names+=,IP:$address
done
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/O=system:nodes/CN=system:node:$name" \
  -addext "subjectAltName=$names" -keyout "$made/tls.key" -out "$made/csr" 2> "$made/log" || { cat "$made/log" >&2; exit 1; }
kubectl create -f - << EOF
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: $request}
spec:
  signerName: $signer
  usages: [digital signature, server auth]
  request: $(base64 < "$made/csr" | tr -d '\n')
EOF
kubectl certificate approve "$request"
if ! kubectl wait "csr/$request" --for=jsonpath='{.status.certificate}' --timeout=60s; then
  kubectl delete csr "$request"
  echo "$signer did not sign: name another SIGNER, or use another authority (docs/GUIDES.md, \"Pods\")" >&2
  exit 1
fi
kubectl get csr "$request" -o jsonpath='{.status.certificate}' | base64 -d > "$made/tls.crt"
kubectl delete csr "$request"
kubectl -n "$namespace" get configmap kube-root-ca.crt -o jsonpath='{.data.ca\.crt}' > "$made/ca.crt"
if ! openssl verify -CAfile "$made/ca.crt" -untrusted "$made/tls.crt" "$made/tls.crt"; then
  echo 'Pods do not trust this signer by their ca.crt: use another authority (docs/GUIDES.md, "Pods")' >&2
  exit 1
fi
kubectl -n "$namespace" create secret tls "$service-tls" --cert "$made/tls.crt" --key "$made/tls.key" --dry-run=client \
  -o yaml | kubectl apply -f -
openssl x509 -noout -enddate -in "$made/tls.crt"
