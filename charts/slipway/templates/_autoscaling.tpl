{{/*
A HorizontalPodAutoscaler of one component's Deployment: {root, component, metric, target}. `metric` is what the operator serves of its
processes, and `target` the name of the value with its target for each of them; 0: not by it.
*/}}
{{- define "slipway.autoscaler" -}}
{{- $values := get .root.Values .component }}
{{- $scaling := $values.autoscaling }}
{{- $path := printf "%s.autoscaling" .component }}
{{- $load := int (get $scaling .target) }}
{{- if gt (int $scaling.minReplicas) (int $scaling.maxReplicas) }}
{{- fail (printf "%s.minReplicas is more than %s.maxReplicas" $path $path) }}
{{- end }}
{{- if not (or $load $scaling.targetCPUUtilizationPercentage $scaling.targetMemoryUtilizationPercentage) }}
{{- fail (printf "%s.enabled is true, and all targets are 0: set %s, targetCPUUtilizationPercentage or targetMemoryUtilizationPercentage" $path .target) }}
{{- end }}
{{- if and $load (not (include "slipway.metricsApi" .root)) }}
{{- fail (printf "%s.%s is set, and the operator serves no metrics: set operator.metricsApi.enabled, which needs all namespaces (rbac.namespaces), or %s to 0" $path .target .target) }}
{{- end }}
{{- $scope := dict "root" .root "component" .component }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "slipway.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "slipway.labels" $scope | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "slipway.fullname" .root }}-{{ .component }}
  minReplicas: {{ int $scaling.minReplicas }}
  maxReplicas: {{ int $scaling.maxReplicas }}
  metrics:
  {{- if $load }}
  - type: External
    external:
      metric: {name: {{ .metric }}}
      target: {type: AverageValue, averageValue: {{ $load | quote }}}
  {{- end }}
  {{- range $resource, $percentage := dict "cpu" $scaling.targetCPUUtilizationPercentage "memory" $scaling.targetMemoryUtilizationPercentage }}
  {{- if $percentage }}
  - type: Resource
    resource:
      name: {{ $resource }}
      target: {type: Utilization, averageUtilization: {{ int $percentage }}}
  {{- end }}
  {{- end }}
  {{- with $scaling.behavior }}
  behavior: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* A PodDisruptionBudget of one component: {root, component}. With one replica there is none: it would block every node drain. */}}
{{- define "slipway.disruptionBudget" -}}
{{- $values := get .root.Values .component }}
{{- $scaling := $values.autoscaling }}
{{- if and $values.podDisruptionBudget.enabled (gt (int (ternary $scaling.minReplicas $values.replicaCount $scaling.enabled)) 1) }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "slipway.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "slipway.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  # A pod that never became ready must not hold up a node drain.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "slipway.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}
