{{- define "kube-fanout.name" -}}
{{- $named := dict "central" "kube-fanout" "zone" "kube-fanout-zone" "node" "kube-fanout-node" -}}
{{- .Values.name | default (get $named .Values.form) -}}
{{- end }}

{{- define "kube-fanout.labels" -}}
{app.kubernetes.io/name: kube-fanout, app.kubernetes.io/component: {{ .Values.name | default .Values.form }}}
{{- end }}

{{- define "kube-fanout.config" -}}
{{- .Values.config | default (.Files.Get (printf "files/%s.yaml" .Values.form)) -}}
{{- end }}

{{- define "kube-fanout.template" -}}
{{- $name := include "kube-fanout.name" . -}}
{{- $onNode := eq .Values.form "node" -}}
metadata:
  labels: {{ include "kube-fanout.labels" . }}
  {{- if or .Values.rollOnChange .Values.podAnnotations }}
  annotations:
    {{- if .Values.rollOnChange }}
    kube-fanout.io/config: {{ include "kube-fanout.config" . | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ $name }}
  # The proxy does not use environment variables with the names of Services.
  enableServiceLinks: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets: {{ toJson . }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{ toJson . }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{ toJson . }}
  {{- end }}
  {{- if .Values.tolerations }}
  tolerations: {{ toJson .Values.tolerations }}
  {{- else if $onNode }}
  # Agents can run on every node.
  tolerations: [{operator: Exists}]
  {{- end }}
  securityContext:
    # OpenShift permits this user and group only with the SCC nonroot-v2 (`oc adm policy add-scc-to-user`).
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    # The mounted keys are readable for this group.
    fsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  {{- if not $onNode }}
  topologySpreadConstraints:
    - topologyKey: kubernetes.io/hostname
      maxSkew: 1
      whenUnsatisfiable: DoNotSchedule
      # Nodes that cannot run the pod, such as cordoned and lost ones, do not count.
      nodeTaintsPolicy: Honor
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels: {{ include "kube-fanout.labels" . }}
    - topologyKey: topology.kubernetes.io/zone
      maxSkew: 1
      nodeTaintsPolicy: Honor
      {{- if eq .Values.form "zone" }}
      # Every zone needs a proxy of its own.
      whenUnsatisfiable: DoNotSchedule
      {{- else }}
      whenUnsatisfiable: ScheduleAnyway
      {{- end }}
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels: {{ include "kube-fanout.labels" . }}
  {{- end }}
  # Longer than preStop (5 s), the drain (20 s) and the last audit records (5 s) together.
  terminationGracePeriodSeconds: 35
  containers:
    - name: kube-fanout
      image: {{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag }}{{ end }}
      {{- with .Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      args:
        - serve
        - --config=/etc/kube-fanout/config.yaml
        {{- with .Values.bindIP }}
        - --listen={{ . }}:8443
        - --healthz-bind-address={{ . }}:10256
        - --metrics-bind-address={{ . }}:10249
        {{- end }}
        {{- if eq .Values.metrics.auth "delegated" }}
        - --metrics-auth=delegated
        {{- end }}
        {{- if .Values.certificateHolders.enabled }}
        - --client-ca=/etc/kube-fanout/client-ca/ca.crt
        - --impersonator-kubeconfig=/etc/kube-fanout/impersonator/kubeconfig
        {{- end }}
      {{- if $onNode }}
      env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
      {{- end }}
      ports:
        - {name: https, containerPort: 8443}
        - {name: health, containerPort: 10256}
        - {name: metrics, containerPort: 10249}
      startupProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 1
        failureThreshold: 60
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 5
        timeoutSeconds: 5
      livenessProbe:
        httpGet: {path: /livez, port: health}
        timeoutSeconds: 5
      # Services remove the endpoint in this time; the proxy still serves requests.
      lifecycle: {preStop: {sleep: {seconds: 5}}}
      securityContext:
        readOnlyRootFilesystem: true
        allowPrivilegeEscalation: false
        capabilities: {drop: [ALL]}
      {{- if .Values.resources }}
      resources: {{ toJson .Values.resources }}
      {{- else if $onNode }}
      # The cache has the pods of the node, but Services and EndpointSlices of the whole cluster.
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {memory: 512Mi}
      {{- else }}
      # By default half of the limit is for objects and events (feeds.memoryMebibytes). Resources that do not fit
      # pass through. There is no CPU limit, so that bursts are handled faster.
      resources:
        requests: {cpu: 500m, memory: 1Gi}
        limits: {memory: 4Gi}
      {{- end }}
      volumeMounts:
        - {name: config, mountPath: /etc/kube-fanout/config.yaml, subPath: config.yaml, readOnly: true}
        - {name: tls, mountPath: /etc/kube-fanout/tls, readOnly: true}
        {{- if .Values.certificateHolders.enabled }}
        - {name: client-ca, mountPath: /etc/kube-fanout/client-ca, readOnly: true}
        - {name: impersonator, mountPath: /etc/kube-fanout/impersonator, readOnly: true}
        - {name: impersonator-token, mountPath: /etc/kube-fanout/impersonator-token, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ $name }}}
    - name: tls
      # 288 is 0440: readable for the group above.
      secret: {secretName: {{ .Values.tls.secretName | default (printf "%s-tls" $name) }}, defaultMode: 288}
    {{- if .Values.certificateHolders.enabled }}
    - name: client-ca
      configMap: {name: {{ .Values.certificateHolders.clientCAConfigMap }}}
    - name: impersonator
      configMap: {name: {{ $name }}-impersonator}
    - name: impersonator-token
      secret: {secretName: {{ $name }}-impersonator, defaultMode: 288}
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
