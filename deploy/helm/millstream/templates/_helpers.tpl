{{- define "millstream.name" -}}
{{- if contains "millstream" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-millstream" (.Release.Name | trunc 29 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "millstream.selector" -}}
app.kubernetes.io/name: millstream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millstream.labels" -}}
{{ include "millstream.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "millstream.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "millstream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The text of a setting. Helm reads numbers of values files as floats, whose text is 6.048e+08 from a million on.
Argument: a list of the name and the value. */}}
{{- define "millstream.setting" -}}
{{- $name := index . 0 }}
{{- $value := index . 1 }}
{{- if not (kindIs "float64" $value) -}}
{{ $value | toString }}
{{- else if gt $value 9007199254740992.0 -}}
{{ fail (printf "settings.%s: Helm does not keep all digits of such a large number: write it in quotes" $name) }}
{{- else if eq $value (floor $value) -}}
{{ int64 $value }}
{{- else -}}
{{ $value | toString }}
{{- end -}}
{{- end }}

{{/* The security protocol of the listener, which is also its name. */}}
{{- define "millstream.protocol" -}}
{{ if .Values.tls.secret }}SSL{{ else }}PLAINTEXT{{ end }}
{{- end }}

{{/* A probe of a page that needs the token, if there is one. Arguments: the context and the path. An HTTP probe of
Kubernetes cannot send a token from a Secret, so a program in the container does. */}}
{{- define "millstream.probe" -}}
{{- $context := index . 0 }}
{{- $path := index . 1 }}
{{- if $context.Values.http.tokenSecret -}}
exec:
  command:
    - python
    - -m
    - millstream.process.health_check
    - http://127.0.0.1:{{ $context.Values.ports.http }}{{ $path }}
    - /etc/millstream-http/token
{{- else -}}
httpGet:
  path: {{ $path }}
  port: http
{{- end }}
{{- end }}
