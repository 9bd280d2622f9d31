{{/* Begins the name of everything. */}}
{{- define "firearrow.name" -}}
{{- $name := ternary .Release.Name (printf "%s-firearrow" .Release.Name) (contains "firearrow" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select the pods of a component: list of the chart and the component's name. */}}
{{- define "firearrow.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: firearrow
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "firearrow.labels" -}}
{{- $top := index . 0 -}}
{{ include "firearrow.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end }}

{{/* All name servers, each by its own name: brokers register with every one. */}}
{{- define "firearrow.namesrv" -}}
{{- $name := include "firearrow.name" . -}}
{{- $found := list -}}
{{- range until (int .Values.namesrv.replicas) -}}
{{- $found = append $found (printf "%s-namesrv-%d.%s-namesrv.%s.svc:9876" $name . $name $.Release.Namespace) -}}
{{- end -}}
{{- join ";" $found -}}
{{- end }}

{{/* All controllers as a group knows them: each by its number and name. */}}
{{- define "firearrow.controllerMembers" -}}
{{- $name := include "firearrow.name" . -}}
{{- $found := list -}}
{{- range until (int .Values.controller.replicas) -}}
{{- $found = append $found (printf "n%d-%s-controller-%d.%s-controller.%s.svc:9878" . $name . $name $.Release.Namespace) -}}
{{- end -}}
{{- join ";" $found -}}
{{- end }}

{{/* The same as brokers ask them. */}}
{{- define "firearrow.controllers" -}}
{{- regexReplaceAll "(^|;)n[0-9]+-" (include "firearrow.controllerMembers" .) "${1}" -}}
{{- end }}

{{/* The volume of each pod of a stateful set, by its values. */}}
{{- define "firearrow.volume" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .className }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size | quote }}
{{- end }}

{{/* Image and rights of a container. */}}
{{- define "firearrow.container" -}}
{{- with .Values.image -}}
image: "{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default (printf "v%s" $.Chart.AppVersion) }}{{ end }}"
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* Rights and neighbours of a pod: list of the chart and the component's name. */}}
{{- define "firearrow.pod" -}}
{{- $top := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $top.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "firearrow.selector" . | nindent 8 }}
{{- end }}

{{/* Probes by the HTTP server that also has the metrics. A start after a crash reads the log first. */}}
{{- define "firearrow.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 5
  failureThreshold: 360
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* At most one pod of a component away at a time: list of the chart and the component's name. */}}
{{- define "firearrow.budget" -}}
{{- $top := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "firearrow.name" $top }}-{{ index . 1 }}
  labels:
    {{- include "firearrow.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "firearrow.selector" . | nindent 6 }}
{{- end }}
