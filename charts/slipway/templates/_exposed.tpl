{{/* The Ingress of one component: {root, component, port}. */}}
{{- define "slipway.ingress" -}}
{{- $ingress := (get .root.Values .component).ingress -}}
{{- $name := printf "%s-%s" (include "slipway.fullname" .root) .component -}}
{{- if $ingress.enabled }}
{{- if not $ingress.hosts }}
{{- fail (printf "%s.ingress.enabled is true, but %s.ingress.hosts is empty: name a host, such as {host: models.example.com}" .component .component) }}
{{- end }}
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "slipway.labels" . | nindent 4 }}
  {{- with $ingress.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with $ingress.className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with $ingress.tls }}
  tls: {{- toYaml . | nindent 2 }}
  {{- end }}
  rules:
  {{- $port := int .port }}
  {{- range $ingress.hosts }}
  - host: {{ .host | quote }}
    http:
      paths:
      {{- range default (list (dict "path" "/")) .paths }}
      - path: {{ .path | quote }}
        pathType: {{ default "Prefix" .pathType }}
        backend:
          service:
            name: {{ $name }}
            port: {number: {{ $port }}}
      {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The HTTPRoute of one component, likewise. */}}
{{- define "slipway.httpRoute" -}}
{{- $route := (get .root.Values .component).httpRoute -}}
{{- if $route.enabled }}
{{- include "slipway.needs" (dict "root" .root "kind" "gateway.networking.k8s.io/v1/HTTPRoute" "value" (printf "%s.httpRoute.enabled" .component) "bring" "the CRDs of the Gateway API") }}
{{- if not $route.parentRefs }}
{{- fail (printf "%s.httpRoute.enabled is true, but %s.httpRoute.parentRefs is empty: name the Gateway, such as {name: public, namespace: gateways}" .component .component) }}
{{- end }}
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: {{ include "slipway.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "slipway.labels" . | nindent 4 }}
  {{- with $route.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  parentRefs: {{- toYaml $route.parentRefs | nindent 2 }}
  {{- with $route.hostnames }}
  hostnames: {{- toYaml . | nindent 2 }}
  {{- end }}
  rules:
  - matches:
    - path: {type: PathPrefix, value: /}
    {{- with $route.timeouts }}
    timeouts: {{- toYaml . | nindent 6 }}
    {{- end }}
    backendRefs:
    - name: {{ include "slipway.fullname" .root }}-{{ .component }}
      port: {{ int .port }}
{{- end }}
{{- end -}}
