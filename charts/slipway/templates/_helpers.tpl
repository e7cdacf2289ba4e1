{{/* Prefix of all object names: the release's name, with the chart's unless it is in there already. */}}
{{- define "slipway.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select one component's pods. They never change, because a Deployment's selector cannot. */}}
{{- define "slipway.selectorLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The same but for the component, as the operator's flag takes them. */}}
{{- define "slipway.releaseLabels" -}}
app.kubernetes.io/name={{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }},app.kubernetes.io/instance={{ .Release.Name }}
{{- end -}}

{{- define "slipway.labels" -}}
{{ include "slipway.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: slipway
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Image reference: a digest wins over a tag, whose default is the chart's appVersion. global.imageRegistry replaces the registry. */}}
{{- define "slipway.image" -}}
{{- $repository := .image.repository -}}
{{- with (.root.Values.global).imageRegistry -}}
{{- $parts := splitList "/" $repository -}}
{{- if and (gt (len $parts) 1) (regexMatch "[.:]|^localhost$" (first $parts)) -}}
{{- $parts = rest $parts -}}
{{- end -}}
{{- $repository = printf "%s/%s" (trimSuffix "/" .) (join "/" $parts) -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/*
Fails with a sentence where the cluster does not have a kind: {root, kind: GROUP/VERSION/KIND, value, bring}. Helm knows the kinds
of a cluster when it talks to one, or by --api-versions; without, as in `helm template`, it knows no kind at all, not even Pods.
*/}}
{{- define "slipway.needs" -}}
{{- $known := .root.Capabilities.APIVersions -}}
{{- if and ($known.Has "v1/Pod") (not ($known.Has .kind)) -}}
{{- fail (printf "%s is set, but the cluster has no kind %s: install %s first, or leave the value as it is by default" .value .kind .bring) -}}
{{- end -}}
{{- end -}}

{{- define "slipway.serviceAccountName" -}}
{{- $account := (get .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "slipway.fullname" .root) .component) $account.name -}}
{{- else -}}
{{- required (printf "%s.serviceAccount.name must name an existing ServiceAccount when %s.serviceAccount.create is false" .component .component) $account.name -}}
{{- end -}}
{{- end -}}

{{/* Namespaces to work in, comma-separated; empty for all of them. */}}
{{- define "slipway.namespaces" -}}
{{- join "," .Values.rbac.namespaces -}}
{{- end -}}

{{/* How gateways authenticate requests: Tenants are cluster-wide, so not by itself with rights in some namespaces only. */}}
{{- define "slipway.authMode" -}}
{{- if and (eq .Values.auth.mode "auto") .Values.rbac.namespaces }}off{{ else }}{{ .Values.auth.mode }}{{ end -}}
{{- end -}}

{{/* Whether the metrics API is served: registrations are cluster-wide, so not with rights in some namespaces only. */}}
{{- define "slipway.metricsApi" -}}
{{- if and .Values.operator.metricsApi.enabled (not .Values.rbac.namespaces) -}}true{{- end -}}
{{- end -}}

{{- define "slipway.metricsApiRole" -}}
{{- printf "%s-%s-metrics-api" .Release.Namespace (include "slipway.fullname" .) -}}
{{- end -}}

{{/* names.grants as the operator's flag takes it: NAMESPACE=NAME,PREFIX*;NAMESPACE=... */}}
{{- define "slipway.nameGrants" -}}
{{- range $index, $namespace := keys .Values.names.grants | sortAlpha -}}
{{- if $index }};{{ end }}{{ $namespace }}={{ join "," (get $.Values.names.grants $namespace) }}
{{- end -}}
{{- end -}}

{{/* pricing as the operator's flag takes it: RESOURCE=PRICE,... */}}
{{- define "slipway.prices" -}}
{{- $prices := list -}}
{{- range $resource := keys .Values.pricing.acceleratorHour | sortAlpha -}}
{{- $prices = append $prices (printf "%s=%v" $resource (get $.Values.pricing.acceleratorHour $resource)) -}}
{{- end -}}
{{- with .Values.pricing.cpuCoreHour }}{{ $prices = append $prices (printf "cpu=%v" .) }}{{ end -}}
{{- with .Values.pricing.memoryGiBHour }}{{ $prices = append $prices (printf "memory=%v" .) }}{{ end -}}
{{- join "," $prices -}}
{{- end -}}

{{/* Secret with the certificate of the API port; empty for HTTP. */}}
{{- define "slipway.gatewayTlsSecret" -}}
{{- with .Values.gateway.tls -}}
{{- if .secretName }}{{ .secretName }}{{ else if .issuerRef.name }}{{ include "slipway.fullname" $ }}-gateway-tls{{ end -}}
{{- end -}}
{{- end -}}

{{/* Certificates and their Secrets that the operator has of cert-manager, as far as their names are known. */}}
{{- define "slipway.issuedSecrets" -}}
- {{ include "slipway.fullname" . }}-internal-gateway
- {{ include "slipway.fullname" . }}-internal-operator
{{- with include "slipway.namespaces" . }}
{{- range $namespace := splitList "," . }}
- {{ include "slipway.fullname" $ }}-internal-pods-{{ $namespace }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Port of the gateways' Service. Its default is that of HTTP. */}}
{{- define "slipway.gatewayPort" -}}
{{- $port := int .Values.gateway.service.port -}}
{{- if and (include "slipway.gatewayTlsSecret" .) (eq $port 80) }}443{{ else }}{{ $port }}{{ end -}}
{{- end -}}

{{/* Base URL for OpenAI clients inside the cluster, shown in every ModelDeployment's status. */}}
{{- define "slipway.endpoint" -}}
{{- $tls := ne (include "slipway.gatewayTlsSecret" .) "" -}}
{{- $port := include "slipway.gatewayPort" . -}}
{{ ternary "https" "http" $tls }}://{{ include "slipway.fullname" . }}-gateway.{{ .Release.Namespace }}.svc
{{- if ne $port (ternary "443" "80" $tls) }}:{{ $port }}{{ end }}/v1
{{- end -}}

{{/* What both pods have in common after their containers. */}}
{{- define "slipway.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "slipway.probe" -}}
httpGet: {path: {{ .path }}, port: admin}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Environment of gateways: URLs of databases, which have passwords in them, from Secrets. */}}
{{- define "slipway.gatewayEnv" -}}
{{- $gateway := .Values.gateway }}
{{- $urls := dict "INFERENCE_LOG" $gateway.inferenceLog.urlSecret "LEDGER" $gateway.ledger.urlSecret "REDIS" .Values.quotas.redis.urlSecret }}
{{- range $what, $secret := $urls }}
{{- if $secret.name }}
- name: SLIPWAY_GATEWAY_{{ $what }}_URL
  valueFrom: {secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.key }}}}
{{- end }}
{{- end }}
{{- with $gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
