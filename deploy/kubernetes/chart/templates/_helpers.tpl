{{/* Every part (server, agent, ...) is called with (dict "root" $ "part" "server"). */}}
{{- define "solehold.name" -}}
{{ printf "%s-%s" .root.Release.Name .part | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "solehold.selector" -}}
app.kubernetes.io/name: solehold
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "solehold.labels" -}}
{{ include "solehold.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{- define "solehold.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "solehold.scheme" -}}
{{ if .Values.secrets.tls }}https{{ else }}http{{ end }}
{{- end }}

{{/* Whether servers ask the orchestrator for its jobs. */}}
{{- define "solehold.showsJobs" -}}
{{ if and .Values.server.enabled .Values.orchestrator.enabled .Values.secrets.orchestratorKey }}yes{{ end }}
{{- end }}

{{- define "solehold.serverUrl" -}}
{{ include "solehold.scheme" . }}://{{ .Release.Name }}-server:{{ .Values.server.port }}
{{- end }}

{{/* What a pod of every part has: who it runs as, how long it may take to stop, and where it may be. */}}
{{- define "solehold.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "solehold.selector" . | nindent 14 }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "solehold.selector" . | nindent 8 }}
{{- end }}

{{/* The pause before the signal and the time to stop, with ten seconds to spare: nothing is killed while it drains. */}}
{{- define "solehold.grace" -}}
terminationGracePeriodSeconds: {{ add .preStopSeconds .stopSeconds 10 }}
{{- end }}

{{- define "solehold.preStop" -}}
{{- if .preStopSeconds -}}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ .preStopSeconds | toString | quote }}]
{{- end }}
{{- end }}

{{- define "solehold.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* (dict "port" NAME "scheme" HTTP): alive, and ready to work. */}}
{{- define "solehold.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ .port }}, scheme: {{ .scheme }}}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: {{ .port }}, scheme: {{ .scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ .port }}, scheme: {{ .scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* How agents and gates reach the servers. */}}
{{- define "solehold.clientMounts" -}}
- {name: runner, mountPath: /run/secrets/runner, readOnly: true}
{{- if .Values.secrets.tls }}
- {name: authority, mountPath: /run/secrets/authority, readOnly: true}
{{- end }}
{{- end }}

{{- define "solehold.clientVolumes" -}}
- name: runner
  secret: {secretName: {{ .Values.secrets.runner }}, defaultMode: 0440}
{{- if .Values.secrets.tls }}
- name: authority
  secret:
    secretName: {{ .Values.secrets.tls }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- end }}

{{- define "solehold.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "solehold.name" . }}
  labels: {{- include "solehold.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "solehold.selector" . | nindent 6 }}
{{- end }}

{{/* A Service for each part, also for those that only Prometheus asks: "ports" is a list of {name, port}. */}}
{{- define "solehold.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "solehold.name" . }}
  labels: {{- include "solehold.labels" . | nindent 4 }}
spec:
  selector: {{- include "solehold.selector" . | nindent 4 }}
  ports:
    {{- range .ports }}
    - {name: {{ .name }}, port: {{ .port }}, targetPort: {{ .name }}}
    {{- end }}
{{- end }}

{{/* agent.yaml: what the values say, and what follows from the rest of the chart. */}}
{{- define "solehold.agentConfig" -}}
{{- $added := dict
    "servers" (list (include "solehold.serverUrl" .root))
    "api_key_file" "/run/secrets/runner/key"
    "metrics_host" "0.0.0.0"
    "metrics_port" .root.Values.agent.port
    "drain_budget_seconds" .root.Values.agent.stopSeconds -}}
{{- if .root.Values.secrets.tls }}{{ $_ := set $added "ca_cert" "/run/secrets/authority/ca.crt" }}{{ end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "solehold.name" . }}
  labels: {{- include "solehold.labels" . | nindent 4 }}
data:
  agent.yaml: |
    {{- toYaml (merge $added .config) | nindent 4 }}
{{- end }}

{{- define "solehold.agentContainer" -}}
name: agent
image: {{ .Values.agent.image }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [solehold, agent, --config, /etc/solehold/agent.yaml]
ports:
  - {name: metrics, containerPort: {{ .Values.agent.port }}}
{{- include "solehold.probes" (dict "port" "metrics" "scheme" "HTTP") | nindent 0 }}
{{- with include "solehold.preStop" .Values.agent }}{{ nindent 0 . }}{{ end }}
{{- include "solehold.containerSecurity" . | nindent 0 }}
resources: {{- toYaml .Values.agent.resources | nindent 2 }}
volumeMounts:
  - {name: config, mountPath: /etc/solehold, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- include "solehold.clientMounts" . | nindent 2 }}
{{- end }}
