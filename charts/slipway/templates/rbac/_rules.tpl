{{/* Least privilege: no wildcard, no Secret but our own by name, nothing that is not called. tests/chart asks a real API server about each line. */}}
{{- define "slipway.operatorRules" -}}
- apiGroups: [slipway.dev]
  resources: [modeldeployments, modeladapters]
  verbs: [get, list, watch]
- apiGroups: [slipway.dev]
  resources: [analysistemplates]
  verbs: [get]
# What an analysis counted; former runs beyond the limits of the spec are deleted.
- apiGroups: [slipway.dev]
  resources: [analysisruns]
  verbs: [get, list, create, update, delete]
# Its decisions go to the status alone: the spec is the user's.
- apiGroups: [slipway.dev]
  resources: [modeldeployments/status, modeladapters/status]
  verbs: [update]
# Pools of classic models: their pods are a StatefulSet of ours, which knows its models from one ConfigMap of a namespace.
- apiGroups: [slipway.dev]
  resources: [modelpools]
  verbs: [list]
- apiGroups: [slipway.dev]
  resources: [modelpools/status]
  verbs: [update]
# Public names with rules. Targets of other namespaces need a ReferenceGrant there, where the cluster has these.
- apiGroups: [slipway.dev]
  resources: [modelroutes]
  verbs: [list]
- apiGroups: [slipway.dev]
  resources: [modelroutes/status]
  verbs: [update]
- apiGroups: [slipway.dev]
  resources: [experiments]
  verbs: [list]
- apiGroups: [slipway.dev]
  resources: [experiments/status]
  verbs: [update]
- apiGroups: [gateway.networking.k8s.io]
  resources: [referencegrants]
  verbs: [list]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [slipway-model-pools, slipway-adapters]
  # Pools own it, or ModelDeployments with adapters. Who changes owners needs the right to delete where OwnerReferencesPermissionEnforcement is on.
  verbs: [patch, delete]
# Owner references that block deletion need this where OwnerReferencesPermissionEnforcement is on.
- apiGroups: [slipway.dev]
  resources: [modeldeployments/finalizers, modeladapters/finalizers, modelpools/finalizers]
  verbs: [update]
# Server-side apply of an object that may not exist yet needs create and patch.
- apiGroups: [apps]
  resources: [replicasets, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
# Replicas of several pods, where the cluster has LeaderWorkerSet. A StatefulSet of it controls the pods that take requests;
# one of ours has the pods of a pool.
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
# `patch`: the annotation by which a ReplicaSet that gets smaller removes the pods with the fewest requests first, and
# the one by which the kubelet of a pool's pod writes a changed file of entries at once.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
# The readiness gate of standby pods: it is a condition of the pod, which the operator alone sets.
- apiGroups: [""]
  resources: [pods/status]
  verbs: [patch]
# What pods of a revision must load: made once, immutable, collected with the revision. Never read nor changed.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
# spec.restartAt, and pods that loaded other weights than their revision: by eviction, so that disruption budgets are kept.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# Drains of nodes: pods get a successor elsewhere before they are evicted. A Role of a namespace cannot grant it.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
# Around the pods of each ModelDeployment; made and mended by server-side apply, and gone with their owner.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, patch]
# Metrics of analyses with the provider job; downloads ahead into the model cache of nodes.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, create, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
# The keys by which its model pods know who a request is of: this one alone, by server-side apply, never read.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [slipway-tenant-key]
  verbs: [create, patch]
{{- if .Values.tls.internal.enabled }}
# Their certificate, in the same way.
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [slipway-pod-tls]
  verbs: [create, patch]
{{- end }}
# Their annotation slipway.dev/model-names: which names they alone may have.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list]
{{- end -}}

{{- define "slipway.operatorOwnRules" -}}
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
# Who holds the lease may write; see docs/operator.md.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "slipway.fullname" . }}-operator]
  verbs: [get, update]
# The label of the pod of that one: Services select it. Pods have no fixed names.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, patch]
# Who owns which model name: the operator alone writes it, gateways follow it.
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ include "slipway.fullname" . }}-model-names]
  verbs: [get, update]
# The release's keys, which the operator makes and rotates, and the pepper of API keys; `create` knows no names.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "slipway.fullname" . }}-keys]
  verbs: [get, update]
{{- if include "slipway.conversion" . }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "slipway.fullname" . }}-conversion-ca]
  verbs: [get, update]
{{- end }}
{{- if .Values.tls.internal.enabled }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
  - {{ include "slipway.fullname" . }}-internal-ca
  - {{ include "slipway.fullname" . }}-gateway-internal-tls
  verbs: [get, update]
{{- if .Values.tls.internal.issuerRef.name }}
# What cert-manager issues for gateways, for itself and for each namespace, which it copies. The names follow from those of
# namespaces, so they cannot be listed where all are served.
- apiGroups: [""]
  resources: [secrets]
  {{- if include "slipway.namespaces" . }}
  resourceNames: {{- include "slipway.issuedSecrets" . | nindent 2 }}
  {{- end }}
  verbs: [get]
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [list, create]
- apiGroups: [cert-manager.io]
  resources: [certificates]
  {{- if include "slipway.namespaces" . }}
  resourceNames: {{- include "slipway.issuedSecrets" . | nindent 2 }}
  {{- end }}
  verbs: [patch]
{{- end }}
{{- end }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "slipway.fullname" . }}-key-pepper]
  verbs: [get]
{{- end -}}

{{- define "slipway.gatewayOwnRules" -}}
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [{{ include "slipway.fullname" . }}-model-names]
  verbs: [get, list, watch]
# How many gateways are ready: they divide the limits of tenants.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end -}}

{{/* Tenants belong to no namespace. Their status is the operator's alone; Events about them are in the namespace default. */}}
{{- define "slipway.operatorTenantRules" -}}
- apiGroups: [slipway.dev]
  resources: [tenants]
  verbs: [list]
- apiGroups: [slipway.dev]
  resources: [tenants/status]
  verbs: [update]
{{- end -}}

{{- define "slipway.gatewayTenantRules" -}}
- apiGroups: [slipway.dev]
  resources: [tenants]
  verbs: [get, list, watch]
{{- end -}}

{{/* Only with auth.tokenReview.audience. */}}
{{- define "slipway.gatewayReviewRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end -}}

{{- define "slipway.gatewayRules" -}}
- apiGroups: [slipway.dev]
  resources: [modeldeployments, modeladapters, modelroutes, experiments]
  verbs: [get, list, watch]
# Endpoints are pods that a revision's own ReplicaSet controls, or leaders of its LeaderWorkerSet.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# For gateways of the former release, until an upgrade has replaced them.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end -}}

{{- define "slipway.metricsApiRules" -}}
- apiGroups: [apiregistration.k8s.io]
  resources: [apiservices]
  resourceNames: [v1beta1.custom.metrics.k8s.io, v1beta2.custom.metrics.k8s.io, v1beta1.external.metrics.k8s.io]
  verbs: [get, create, patch, delete]
# Itself: it owns the registrations, so that they go with the release.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [clusterroles]
  resourceNames: [{{ include "slipway.metricsApiRole" . }}]
  verbs: [get]
{{- end -}}

{{/* Only with operator.conversion. */}}
{{- define "slipway.conversionRules" -}}
# The CA of the conversion webhook goes into the CRDs of two versions.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [modeldeployments.slipway.dev, modeladapters.slipway.dev, modelroutes.slipway.dev, tenants.slipway.dev]
  verbs: [get, patch]
{{- end -}}

{{/* A role and its binding: {root, component, name, suffix, kind prefix ("Cluster" or ""), namespace, rules}. */}}
{{- define "slipway.grant" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .prefix }}Role
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "slipway.labels" . | nindent 4 }}
rules: {{- .rules | nindent 0 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .prefix }}RoleBinding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{- include "slipway.labels" . | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ .prefix }}Role, name: {{ .name }}}
subjects:
- {kind: ServiceAccount, name: {{ include "slipway.serviceAccountName" . }}, namespace: {{ .root.Release.Namespace }}}
{{- end -}}
