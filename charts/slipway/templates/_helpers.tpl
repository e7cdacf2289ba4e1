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

{{/* PriorityClass of standby pods; empty: that of the other pods. It is cluster-scoped, so its name carries the release's namespace. */}}
{{- define "slipway.standbyPriorityClass" -}}
{{- $class := .Values.server.standbyPriorityClass -}}
{{- if and $class.create (not .Values.rbac.namespaces) -}}
{{- default (printf "%s-%s-standby" .Release.Namespace (include "slipway.fullname" .)) $class.name -}}
{{- else -}}
{{- $class.name -}}
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
{{- with omit .root.Values.commonLabels "app.kubernetes.io/version" "app.kubernetes.io/part-of" "app.kubernetes.io/managed-by" "helm.sh/chart" }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of a component's pods. None of them changes with the chart alone: an upgrade that touches no pod restarts no pod. */}}
{{- define "slipway.podLabels" -}}
{{ include "slipway.selectorLabels" . }}
{{- with merge (dict) (get .root.Values .component).podLabels .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The spread of a component's pods: its own constraints, or a soft one over nodes where `default` is set. */}}
{{- define "slipway.spread" -}}
{{- $selector := dict "matchLabels" (fromYaml (include "slipway.selectorLabels" .)) -}}
{{- $soft := list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway") -}}
{{- $constraints := list -}}
{{- range default (ternary $soft list (default false .default)) (get .root.Values .component).topologySpreadConstraints -}}
{{- $constraints = append $constraints (merge (deepCopy .) (dict "labelSelector" $selector)) -}}
{{- end -}}
{{- with $constraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Writes each `existingSecret`, as other charts call it, to where ours is named; templates that read one of them include this first.
*/}}
{{- define "slipway.existingSecrets" -}}
{{- $jobs := .Values.jobs -}}
{{- range list (list "operator.hooks" .Values.operator.hooks "signingSecret") (list "operator.verdicts" .Values.operator.verdicts "signingSecret") (list "gateway.ledger" .Values.gateway.ledger "urlSecret") (list "gateway.inferenceLog" .Values.gateway.inferenceLog "urlSecret") (list "gateway.generationLog" .Values.gateway.generationLog "urlSecret") (list "gateway.exposures" .Values.gateway.exposures "databaseUrlSecret") (list "quotas.redis" .Values.quotas.redis "urlSecret") (list "jobs" $jobs "databaseSecret") (list "jobs.webhooks" $jobs.webhooks "secret") (list "jobs.sealing" $jobs.sealing "secret") (list "jobs.objectStores" $jobs.objectStores "secret") -}}
{{- $path := first . -}}{{- $parent := index . 1 -}}{{- $field := last . -}}
{{- $secret := get $parent $field -}}
{{- with $parent.existingSecret -}}
{{- if and $secret.name (ne $secret.name .) -}}
{{- fail (printf "%s.existingSecret and %s.%s.name name two Secrets: set one of them" $path $path $field) -}}
{{- end -}}
{{- $_ := set $secret "name" . -}}
{{- end -}}
{{- end -}}
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

{{/* Whether v1beta1 is served: CRDs are cluster-wide, so not with rights in some namespaces only. */}}
{{- define "slipway.conversion" -}}
{{- if and .Values.operator.conversion.enabled (not .Values.rbac.namespaces) -}}true{{- end -}}
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
{{- $urls := dict "INFERENCE_LOG" $gateway.inferenceLog.urlSecret "GENERATION_LOG" $gateway.generationLog.urlSecret "EXPOSURE_DATABASE" $gateway.exposures.databaseUrlSecret "LEDGER" $gateway.ledger.urlSecret "REDIS" .Values.quotas.redis.urlSecret }}
{{- range $what, $secret := $urls }}
{{- if $secret.name }}
- name: SLIPWAY_GATEWAY_{{ $what }}_URL
  valueFrom: {secretKeyRef: {name: {{ $secret.name }}, key: {{ $secret.key }}}}
{{- end }}
{{- end }}
{{- if $gateway.generationLog.keysSecret.name }}
- {name: SLIPWAY_GATEWAY_GENERATION_LOG_KEYS_FILE, value: /etc/slipway/generation-log/keys.json}
{{- end }}
{{- include "slipway.tracingEnv" . }}
{{- with $gateway.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Where spans go; the SDK of OpenTelemetry reads it. A variable of the same name in extraEnv comes later, and wins. */}}
{{- define "slipway.tracingEnv" -}}
{{- with .Values.tracing.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- end }}

{{/*
Fails with a sentence where a CRD is another release's that is still installed: {root, name}. Those that an uninstalled release has
left may be taken over (helm --take-ownership).
*/}}
{{- define "slipway.ownCrd" -}}
{{- $annotations := (dig "metadata" "annotations" dict (lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name)) -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if and $release (or (ne $release .root.Release.Name) (ne $namespace .root.Release.Namespace)) -}}
{{- range dig "items" list (lookup "v1" "Secret" $namespace "") -}}
{{- if and (eq .type "helm.sh/release.v1") (eq (dig "metadata" "labels" "name" "" .) $release) -}}
{{- fail (printf "the CRD %s is of the release %s in namespace %s: install this release with crds.install=false, and upgrade that one first; give the two disjoint rbac.namespaces" $.name $release $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Releases of this chart, NAMESPACE/NAME, whose operators work in all namespaces as this one's does, comma-separated. */}}
{{- define "slipway.competing" -}}
{{- $competing := list -}}
{{- if not .Values.rbac.namespaces -}}
{{- range dig "items" list (lookup "apps/v1" "Deployment" "" "") -}}
{{- $labels := default dict .metadata.labels -}}
{{- if and (eq (get $labels "app.kubernetes.io/part-of") "slipway") (eq (get $labels "app.kubernetes.io/component") "operator") -}}
{{- $release := printf "%s/%s" .metadata.namespace (get $labels "app.kubernetes.io/instance") -}}
{{- $everywhere := not (regexMatch "--namespaces=" (toJson (first .spec.template.spec.containers).args)) -}}
{{- if and $everywhere (ne $release (printf "%s/%s" $.Release.Namespace $.Release.Name)) -}}
{{- $competing = append $competing $release -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join ", " $competing -}}
{{- end -}}
