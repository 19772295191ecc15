{{/* The name of everything that the chart makes. */}}
{{- define "corral.name" -}}
{{- if contains "corral" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-corral" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{/* What the pods are found by; it never changes. */}}
{{- define "corral.selector" -}}
app.kubernetes.io/name: corral
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "corral.labels" -}}
{{ include "corral.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}
