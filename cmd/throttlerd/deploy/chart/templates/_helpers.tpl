{{- define "throttlerd.name" -}}
{{- if contains "throttlerd" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-throttlerd" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "throttlerd.selector" -}}
app.kubernetes.io/name: throttlerd
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "throttlerd.labels" -}}
{{ include "throttlerd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
