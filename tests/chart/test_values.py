"""Values: closed, described, and every one of them does something."""

from typing import Any

import pytest
import yaml

from tests.chart.rendered import CHART, refusal, text

pytestmark = pytest.mark.integration

Values = dict[str, Any]

PATH = "gateway.service.port"
_DIGEST = "sha256:" + "0" * 64
_POD = {
    "extraArgs": ["--help"],
    "extraEnv": [{"name": "A", "value": "b"}],
    "resources.requests.cpu": "7",
    "resources.requests.memory": "77Mi",
    "resources.limits.memory": "7Gi",
    "livenessProbe.periodSeconds": 77,
    "livenessProbe.timeoutSeconds": 7,
    "livenessProbe.failureThreshold": 7,
    "readinessProbe.periodSeconds": 77,
    "readinessProbe.timeoutSeconds": 7,
    "readinessProbe.failureThreshold": 7,
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "extraVolumes": [{"name": "a", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "a", "mountPath": "/a"}],
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
    "logLevel": "debug",
    "serviceAccount.create": False,
    "serviceAccount.name": "mine",
    "serviceAccount.annotations": {"a": "b"},
}
_EXPOSED: Values = {
    "ingress.enabled": True,
    "ingress.className": "nginx",
    "ingress.annotations": {"a": "b"},
    "ingress.hosts": [{"host": "other.example.com", "paths": [{"path": "/v1", "pathType": "Exact"}]}],
    "ingress.tls": [{"secretName": "models-tls", "hosts": ["models.example.com"]}],
    "httpRoute.enabled": True,
    "httpRoute.annotations": {"a": "b"},
    "httpRoute.parentRefs": [{"name": "other"}],
    "httpRoute.hostnames": ["models.example.com"],
    "httpRoute.timeouts.request": "10m",
}
# For every leaf of values.yaml another value.
OTHER: Values = {
    "nameOverride": "dock",
    "fullnameOverride": "dock",
    "global.imageRegistry": "mirror.example.com:5000",
    "imagePullSecrets": [{"name": "registry"}],
    "commonLabels": {"team": "platform"},
    "podSecurityContext.runAsNonRoot": False,
    "podSecurityContext.seccompProfile.type": "Unconfined",
    "securityContext.allowPrivilegeEscalation": True,
    "securityContext.readOnlyRootFilesystem": False,
    "securityContext.capabilities.drop": ["NET_RAW"],
    "crds.install": False,
    "crds.keep": False,
    "rbac.create": False,
    "rbac.namespaces": ["a"],
    "rbac.aggregateRoles": False,
    "controlApi.enabled": True,
    "controlApi.tls.secretName": "control-api-tls",
    "operator.replicaCount": 2,
    "operator.image.repository": "mirror/operator",
    "operator.image.tag": "9",
    "operator.image.digest": _DIGEST,
    "operator.image.pullPolicy": "Never",
    "operator.audit.enabled": False,
    "operator.audit.claimName": "audit",
    "operator.hooks.signingSecret.name": "hooks",
    "operator.hooks.signingSecret.key": "mine",
    "operator.verdicts.signingSecret.name": "verdicts",
    "operator.verdicts.signingSecret.key": "mine",
    "operator.outbound.allowedCIDRs": ["10.96.0.0/12"],
    "operator.outbound.allowedHosts": ["*.tools.svc"],
    "operator.metricsApi.enabled": False,
    "operator.conversion.enabled": True,
    "server.imagePullSecrets": [{"name": "registry"}],
    "server.image.repository": "mirror/server",
    "server.image.tag": "9",
    "server.image.digest": _DIGEST,
    "server.predictImage.repository": "mirror/predict",
    "server.predictImage.tag": "9",
    "server.predictImage.digest": _DIGEST,
    "server.cpuImage.repository": "mirror/cpu",
    "server.cpuImage.tag": "9",
    "server.cpuImage.digest": _DIGEST,
    "server.standbyPriorityClass.create": False,
    "server.standbyPriorityClass.name": "spare",
    "server.standbyPriorityClass.value": -7,
    "tls.internal.enabled": True,
    "tls.internal.newRevisions": True,
    "tls.internal.issuerRef.name": "internal",
    "tls.internal.issuerRef.kind": "ClusterIssuer",
    "tls.internal.issuerRef.group": "awspca.cert-manager.io",
    "gateway.plane": "required",
    "gateway.replicaCount": 7,
    "gateway.autoscaling.enabled": True,
    "gateway.autoscaling.minReplicas": 3,
    "gateway.autoscaling.maxReplicas": 7,
    "gateway.autoscaling.targetInFlightRequests": 700,
    "gateway.autoscaling.targetCPUUtilizationPercentage": 50,
    "gateway.autoscaling.targetMemoryUtilizationPercentage": 80,
    "gateway.autoscaling.behavior.scaleDown.stabilizationWindowSeconds": 77,
    "gateway.autoscaling.behavior.scaleDown.policies": [],
    **{f"gateway.{leaf}": value for leaf, value in _EXPOSED.items()},
    "operator.hooks.existingSecret": "hooks",
    "operator.verdicts.existingSecret": "verdicts",
    "gateway.ledger.existingSecret": "ledger",
    "gateway.inferenceLog.existingSecret": "inferences",
    "gateway.generationLog.existingSecret": "generations",
    "quotas.redis.existingSecret": "redis",
    "jobs.existingSecret": "database",
    "jobs.webhooks.existingSecret": "webhooks",
    "gateway.accessLog.to": "off",
    "gateway.accessLog.sample": 0.25,
    "gateway.accessLog.maxBytes": 7777777,
    "gateway.accessLog.maxFiles": 7,
    "gateway.ledger.urlSecret.name": "ledger",
    "gateway.ledger.urlSecret.key": "mine",
    "gateway.inferenceLog.urlSecret.name": "inferences",
    "gateway.inferenceLog.urlSecret.key": "mine",
    "gateway.inferenceLog.retentionSeconds": 777,
    "gateway.inferenceLog.maxContentBytes": 777,
    "gateway.generationLog.urlSecret.name": "generations",
    "gateway.generationLog.urlSecret.key": "mine",
    "gateway.generationLog.keysSecret.name": "keys",
    "gateway.generationLog.keysSecret.key": "mine.json",
    "gateway.generationLog.retentionSeconds": 777,
    "gateway.generationLog.maxBytes": 7777777,
    "gateway.generationLog.maxContentBytes": 777,
    "conversations.enabled": True,
    "conversations.idleSeconds": 7777,
    "conversations.retentionSeconds": 7777,
    "conversations.maxContextBytes": 77777,
    "conversations.maxTenantBytes": 77777,
    "conversations.maxTenantConversations": 77,
    "conversations.maxTenantItems": 77,
    "jobs.sealing.secret.name": "mine",
    "jobs.sealing.secret.key": "mine",
    "jobs.sealing.existingSecret": "mine",
    "jobs.objectStores.secret.name": "mine",
    "jobs.objectStores.secret.key": "mine",
    "jobs.objectStores.existingSecret": "mine",
    "gateway.externalHosts": ["api.example.com"],
    "gateway.guards.hosts": ["guard.tools.svc"],
    "gateway.guards.maxInflight": 77,
    "gateway.guards.processes": 7,
    "gateway.guards.secrets": ["guard"],
    "gateway.websocket.idleTimeoutSeconds": 77,
    "gateway.websocket.maxMessageBytes": 77777,
    "gateway.websocket.maxRequests": 7,
    "gateway.websocket.messagesPerSecond": 77,
    "gateway.websocket.pingIntervalSeconds": 7,
    "gateway.exposures.stdout": True,
    "gateway.exposures.url": "https://events.example.com/exposures",
    "gateway.exposures.hosts": ["*.example.com"],
    "gateway.exposures.databaseUrlSecret.name": "exposures",
    "gateway.exposures.databaseUrlSecret.key": "mine",
    "gateway.exposures.existingSecret": "exposures",
    "gateway.exposures.retentionSeconds": 7777,
    "gateway.exposures.kafka.servers": ["kafka:9092"],
    "gateway.exposures.kafka.topic": "mine",
    "gateway.exposures.windowSeconds": 7777,
    "gateway.exposures.rawUnits": True,
    "gateway.stickyBy": ["key"],
    "gateway.allowedOrigins": ["https://app.example.com"],
    "gateway.limits.maxInflight": 7,
    "gateway.limits.maxBodyBytes": 7777777,
    "gateway.limits.maxConnections": 7777,
    "gateway.limits.maxConnectionsPerAddress": 7,
    "gateway.limits.maxClientPercentage": 77,
    "gateway.limits.priority": 7,
    "gateway.drain.delaySeconds": 7,
    "gateway.drain.timeoutSeconds": 77,
    "gateway.resume.maxTimes": 7,
    "gateway.resume.timeoutSeconds": 77,
    "gateway.warmConnections": 7,
    "gateway.failsafe.cutOffFailures": 7,
    "gateway.failsafe.ttlSeconds": 777,
    "gateway.tls.secretName": "gateway-tls",
    "gateway.tls.minVersion": "1.3",
    "gateway.tls.clientCASecretName": "clients",
    "gateway.tls.clientAuth": "optional",
    "gateway.tls.issuerRef.name": "public",
    "gateway.tls.issuerRef.kind": "ClusterIssuer",
    "gateway.tls.issuerRef.group": "awspca.cert-manager.io",
    "gateway.tls.dnsNames": ["models.example.org"],
    "gateway.grpc.enabled": True,
    "gateway.grpc.port": 9077,
    "gateway.service.type": "NodePort",
    "gateway.service.port": 8080,
    "gateway.service.nodePort": 30080,
    "gateway.service.annotations": {"a": "b"},
    "gateway.podDisruptionBudget.enabled": False,
    "keys.rotationSeconds": 7200,
    "podPolicy": [{"namespaces": ["team-a"], "serviceAccountNames": ["reader"]}],
    "registry.mlflow.url": "https://mlflow.example.com",
    "registry.mlflow.pollSeconds": 30,
    "registry.mlflow.writeVerdicts": "never",
    "acceleratorTypes": {"h100": {"resource": "nvidia.com/gpu"}},
    "modelCache.namespaces": ["team-a"],
    "modelCache.hostPath": "/mnt/models",
    "modelCache.maxBytes": 7777777777,
    "modelCache.nodeSelector": {"pool": "gpu"},
    "modelCache.tolerations": [{"key": "gpu", "operator": "Exists"}],
    "modelCache.affinity": {"nodeAffinity": {}},
    "modelCache.priorityClassName": "system-node-critical",
    "auth.mode": "optional",
    "auth.tokenReview.audience": "slipway",
    "console.enabled": True,
    "console.sessionSeconds": 777,
    "console.secureCookie": False,
    "console.batches": True,
    "console.trustedProxies": ["10.244.0.0/16"],
    "console.publicUrl": "https://slipway.example",
    "console.oidc.issuer": "https://id.example",
    "console.oidc.clientId": "slipway",
    "console.oidc.clientSecret.name": "client",
    "console.oidc.clientSecret.key": "secret",
    "console.oidc.scopes": ["openid", "groups"],
    "console.oidc.caConfigMapName": "provider-ca",
    "console.tls.secretName": "console-tls",
    **{f"console.{leaf}": value for leaf, value in _EXPOSED.items()},
    "console.apiServer.url": "https://api.example:6443",
    "console.apiServer.caConfigMapName": "mine",
    "jobs.enabled": True,
    "jobs.replicaCount": 3,
    "jobs.databaseSecret.name": "database",
    "jobs.databaseSecret.key": "mine",
    "jobs.sqlite.claimName": "jobs",
    "jobs.sqlite.fsGroup": 7,
    "jobs.sqlite.maxBytes": 77777777,
    "jobs.maxConcurrency": 7,
    "jobs.slotsPerEndpoint": 7,
    "jobs.autoscaling.enabled": True,
    "jobs.autoscaling.minReplicas": 2,
    "jobs.autoscaling.maxReplicas": 7,
    "jobs.autoscaling.targetLines": 7,
    "jobs.autoscaling.targetCPUUtilizationPercentage": 50,
    "jobs.autoscaling.targetMemoryUtilizationPercentage": 80,
    "jobs.autoscaling.behavior.scaleUp.stabilizationWindowSeconds": 77,
    "jobs.autoscaling.behavior.scaleUp.policies": [],
    "jobs.autoscaling.behavior.scaleDown.stabilizationWindowSeconds": 77,
    "jobs.autoscaling.behavior.scaleDown.policies": [],
    "jobs.podDisruptionBudget.enabled": False,
    "jobs.drainDelaySeconds": 7,
    "jobs.drainTimeoutSeconds": 7,
    "jobs.webhooks.hosts": ["hooks.tools.svc", "*.example.com"],
    "jobs.webhooks.secret.name": "webhooks",
    "jobs.webhooks.secret.key": "mine",
    "jobs.gatewayCASecretName": "ca",
    "quotas.redis.urlSecret.name": "redis",
    "quotas.redis.urlSecret.key": "mine",
    "quotas.redis.timeoutSeconds": 0.5,
    "names.retentionSeconds": 7,
    "names.grants": {"team-a": ["chat"]},
    "names.namespaceAnnotations": False,
    "tracing.endpoint": "http://collector.monitoring.svc:4318",
    "tracing.sample": 0.5,
    "tracing.maxPerSecond": 20,
    "tracing.parentsPerSecond": 7,
    "networkPolicy.enabled": False,
    "networkPolicy.modelPods": False,
    "networkPolicy.clients": [{"podSelector": {}}],
    "networkPolicy.monitoring": [{"podSelector": {}}],
    "networkPolicy.console": [{"podSelector": {}}],
    "pricing.acceleratorHour": {"nvidia.com/gpu": 2.5},
    "pricing.cpuCoreHour": 0.03,
    "pricing.memoryGiBHour": 0.004,
    "metrics.engineSeries.maxPods": 77,
    "metrics.podMonitor.enabled": True,
    "metrics.podMonitor.labels": {"release": "x"},
    "metrics.podMonitor.interval": "7s",
    "metrics.prometheusRule.enabled": True,
    "metrics.prometheusRule.labels": {"release": "x"},
    "metrics.prometheusRule.disabledAlerts": ["SlipwayGPUIdle"],
    "metrics.prometheusRule.runbookUrl": "https://docs.example.com/alerts",
    "metrics.dashboard.enabled": True,
    "metrics.dashboard.labels.grafana_dashboard": "yes",
    "metrics.serviceMonitor.enabled": True,
    "metrics.serviceMonitor.labels": {"release": "x"},
    "metrics.serviceMonitor.interval": "7s",
    **{
        f"{component}.{leaf}": value
        for component in ("operator", "gateway", "jobs", "console")
        for leaf, value in _POD.items()
    },
}
# What must be set for a value to have a meaning at all.
AUTOSCALING = {"gateway.autoscaling.enabled": True}


def exposed_needs(component: str, **more: Any) -> dict[str, Values]:
    """For values of its Ingress and its HTTPRoute."""
    hosts, parents = [{"host": "models.example.com"}], [{"name": "public"}]
    ingress = {**more, f"{component}.ingress.enabled": True, f"{component}.ingress.hosts": hosts}
    route = {**more, f"{component}.httpRoute.enabled": True, f"{component}.httpRoute.parentRefs": parents}
    found = {f"{component}.{leaf}": ingress if leaf.startswith("ingress.") else route for leaf in _EXPOSED}
    for leaf in (f"{component}.ingress.enabled", f"{component}.httpRoute.enabled"):
        found[leaf] = {name: value for name, value in found[leaf].items() if name != leaf}
    return found


_PROVIDER: Values = {
    "console.enabled": True,
    "console.publicUrl": "https://other.example",
    "console.oidc.issuer": "https://other.example",
    "console.oidc.clientId": "other",
}
CONVERSATIONS: Values = {"jobs.enabled": True, "jobs.sqlite.claimName": "jobs"}
NEEDS: dict[str, Values] = {
    **{
        f"gateway.autoscaling.{leaf}": AUTOSCALING
        for leaf in (
            "minReplicas",
            "maxReplicas",
            "targetInFlightRequests",
            "targetCPUUtilizationPercentage",
            "targetMemoryUtilizationPercentage",
            "behavior.scaleDown.stabilizationWindowSeconds",
            "behavior.scaleDown.policies",
        )
    },
    "jobs.autoscaling.enabled": {"jobs.enabled": True, "jobs.databaseSecret.name": "database"},
    **{
        leaf: {"jobs.enabled": True, "jobs.databaseSecret.name": "database", "jobs.autoscaling.enabled": True}
        for leaf in OTHER
        if leaf.startswith("jobs.autoscaling.") and leaf != "jobs.autoscaling.enabled"
    },
    "jobs.podDisruptionBudget.enabled": {
        "jobs.enabled": True,
        "jobs.databaseSecret.name": "database",
        "jobs.replicaCount": 2,
    },
    **exposed_needs("gateway"),
    **exposed_needs("console", **{"console.enabled": True}),
    "jobs.existingSecret": {"jobs.enabled": True},
    **{
        f"registry.mlflow.{leaf}": {"registry.mlflow.url": "http://mlflow.mlflow.svc:5000"}
        for leaf in ("pollSeconds", "writeVerdicts")
    },
    **{
        f"tracing.{leaf}": {"tracing.endpoint": "http://otel:4318"}
        for leaf in ("sample", "maxPerSecond", "parentsPerSecond")
    },
    "jobs.webhooks.existingSecret": {"jobs.enabled": True},
    "gateway.service.nodePort": {"gateway.service.type": "NodePort"},
    "gateway.accessLog.maxBytes": {"gateway.accessLog.to": "file"},
    "gateway.accessLog.maxFiles": {"gateway.accessLog.to": "file"},
    "gateway.grpc.port": {"gateway.grpc.enabled": True},
    "gateway.tls.minVersion": {"gateway.tls.secretName": "gateway-tls"},
    "gateway.tls.clientCASecretName": {"gateway.tls.secretName": "gateway-tls"},
    "gateway.tls.clientAuth": {"gateway.tls.secretName": "gateway-tls", "gateway.tls.clientCASecretName": "clients"},
    "operator.hooks.signingSecret.key": {"operator.hooks.signingSecret.name": "hooks"},
    "operator.verdicts.signingSecret.key": {"operator.verdicts.signingSecret.name": "verdicts"},
    "gateway.ledger.urlSecret.key": {"gateway.ledger.urlSecret.name": "ledger"},
    **{
        f"gateway.inferenceLog.{leaf}": {"gateway.inferenceLog.urlSecret.name": "inferences"}
        for leaf in ("urlSecret.key", "retentionSeconds", "maxContentBytes")
    },
    **{
        f"gateway.generationLog.{leaf}": {"gateway.generationLog.urlSecret.name": "generations"}
        for leaf in ("urlSecret.key", "retentionSeconds", "maxBytes", "maxContentBytes")
    },
    "gateway.generationLog.keysSecret.key": {"gateway.generationLog.keysSecret.name": "keys"},
    **{
        f"gateway.exposures.{leaf}": {"gateway.exposures.databaseUrlSecret.name": "exposures"}
        for leaf in ("databaseUrlSecret.key", "retentionSeconds")
    },
    "conversations.enabled": CONVERSATIONS,
    **{
        f"conversations.{leaf}": {**CONVERSATIONS, "conversations.enabled": True}
        for leaf in (
            *("idleSeconds", "retentionSeconds", "maxContextBytes"),
            *("maxTenantBytes", "maxTenantConversations", "maxTenantItems"),
        )
    },
    **{f"jobs.sealing.{leaf}": {"jobs.enabled": True} for leaf in ("secret.name", "existingSecret")},
    "jobs.sealing.secret.key": {"jobs.enabled": True, "jobs.sealing.secret.name": "sealing"},
    **{f"jobs.objectStores.{leaf}": {"jobs.enabled": True} for leaf in ("secret.name", "existingSecret")},
    "jobs.objectStores.secret.key": {"jobs.enabled": True, "jobs.objectStores.secret.name": "stores"},
    "gateway.exposures.hosts": {"gateway.exposures.url": "https://events.example.com"},
    "gateway.exposures.kafka.topic": {"gateway.exposures.kafka.servers": ["kafka:9092"]},
    "quotas.redis.urlSecret.key": {"quotas.redis.urlSecret.name": "redis"},
    "quotas.redis.timeoutSeconds": {"quotas.redis.urlSecret.name": "redis"},
    "metrics.serviceMonitor.labels": {"metrics.serviceMonitor.enabled": True},
    "metrics.serviceMonitor.interval": {"metrics.serviceMonitor.enabled": True},
    "metrics.podMonitor.labels": {"metrics.podMonitor.enabled": True},
    "metrics.podMonitor.interval": {"metrics.podMonitor.enabled": True},
    **{
        f"metrics.prometheusRule.{leaf}": {"metrics.prometheusRule.enabled": True}
        for leaf in ("labels", "disabledAlerts", "runbookUrl")
    },
    "metrics.dashboard.labels.grafana_dashboard": {"metrics.dashboard.enabled": True},
    **{
        f"modelCache.{name}": {"modelCache.namespaces": ["team-a"]}
        for name in ("hostPath", "maxBytes", "nodeSelector", "tolerations", "affinity", "priorityClassName")
    },
    **{f"server.predictImage.{leaf}": {"server.predictImage.repository": "predict"} for leaf in ("tag", "digest")},
    **{f"server.cpuImage.{leaf}": {"server.cpuImage.repository": "cpu"} for leaf in ("tag", "digest")},
    "tls.internal.newRevisions": {"tls.internal.enabled": True},
    "tls.internal.issuerRef.name": {"tls.internal.enabled": True},
    **{
        f"tls.internal.issuerRef.{leaf}": {"tls.internal.enabled": True, "tls.internal.issuerRef.name": "internal"}
        for leaf in ("kind", "group")
    },
    **{
        f"gateway.tls.{leaf}": {"gateway.tls.issuerRef.name": "public"}
        for leaf in ("issuerRef.kind", "issuerRef.group", "dnsNames")
    },
    "operator.serviceAccount.create": {"operator.serviceAccount.name": "mine"},
    "gateway.serviceAccount.create": {"gateway.serviceAccount.name": "mine"},
    **{f"console.{leaf}": {"console.enabled": True} for leaf in _POD},
    **{
        f"console.{leaf}": {"console.enabled": True}
        for leaf in (
            "publicUrl",
            "trustedProxies",
            "sessionSeconds",
            "secureCookie",
            "tls.secretName",
            "apiServer.url",
            "apiServer.caConfigMapName",
        )
    },
    **{f"console.oidc.{leaf}": _PROVIDER for leaf in ("scopes", "clientSecret.name", "caConfigMapName")},
    "console.batches": {"console.enabled": True, "jobs.enabled": True},
    "console.oidc.issuer": _PROVIDER,
    "console.oidc.clientId": _PROVIDER,
    "console.oidc.clientSecret.key": _PROVIDER | {"console.oidc.clientSecret.name": "client"},
    "console.serviceAccount.create": {"console.enabled": True, "console.serviceAccount.name": "mine"},
    "networkPolicy.console": {"console.enabled": True},
    **{f"jobs.{leaf}": {"jobs.enabled": True} for leaf in _POD},
    "jobs.serviceAccount.create": {"jobs.enabled": True, "jobs.serviceAccount.name": "mine"},
    **{
        f"jobs.{leaf}": {"jobs.enabled": True}
        for leaf in (
            "databaseSecret.name",
            "sqlite.claimName",
            "sqlite.maxBytes",
            "maxConcurrency",
            "slotsPerEndpoint",
            "drainDelaySeconds",
            "drainTimeoutSeconds",
            "gatewayCASecretName",
            "webhooks.secret.name",
        )
    },
    **{
        f"jobs.webhooks.{leaf}": {"jobs.enabled": True, "jobs.webhooks.secret.name": "webhooks"}
        for leaf in ("hosts", "secret.key")
    },
    "controlApi.enabled": {"controlApi.tls.secretName": "control-api-tls"},
    "controlApi.tls.secretName": {"controlApi.enabled": True, "controlApi.tls.secretName": "another"},
    "jobs.replicaCount": {"jobs.enabled": True, "jobs.databaseSecret.name": "database"},
    "jobs.databaseSecret.key": {"jobs.enabled": True, "jobs.databaseSecret.name": "database"},
    "jobs.sqlite.fsGroup": {"jobs.enabled": True, "jobs.sqlite.claimName": "jobs"},
}


def test_every_value_has_another_to_try() -> None:
    assert sorted(_leaves(_defaults())) == sorted(OTHER)


@pytest.mark.parametrize("leaf", OTHER)
def test_every_value_changes_what_is_rendered(leaf: str) -> None:
    needs = NEEDS.get(leaf, {})
    assert text(values=_json(needs)) != text(values=_json({**needs, leaf: OTHER[leaf]}))


def test_every_value_is_in_the_schema_and_in_the_comments() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        top_level_scalar = line and not line.startswith(("#", " ")) and not line.endswith(":")
        if top_level_scalar:
            assert lines[number - 1].startswith("#"), f"no comment above: {line}"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"replicas": 3}, "replicas"),
        ({"gateway.replicas": 3}, "replicas"),
        ({"operator.image.tagg": "1"}, "tagg"),
        ({"operator.replicas": 2}, "replicas"),
        ({"gateway.livenessProbe.httpGet": {}}, "httpGet"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unknown_key_is_refused_by_name(values: Values, key: str) -> None:
    message = refusal(_nested(values))
    assert "additional properties" in message
    assert f"'{key}' not allowed" in message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"global.imageRegistry": "https://mirror"}, "global/imageRegistry"),
        ({"gateway.service.nodePort": 30080}, "gateway.service.type is ClusterIP: set the type to NodePort"),
        (
            {"operator.serviceAccount.create": False},
            "operator.serviceAccount.name must name an existing ServiceAccount",
        ),
        (
            {"operator.replicaCount": 2, "operator.audit.claimName": "audit"},
            "operator.audit.claimName names a claim that only one operator writes",
        ),
        ({"controlApi.enabled": True}, "controlApi.tls.secretName is empty: name the Secret"),
        ({"operator.replicaCount": 0}, "operator/replicaCount"),
        ({"gateway.tls.clientCASecretName": "clients"}, "gateway.tls.secretName is empty: name the Secret"),
        ({"gateway.tls.secretName": "My_Secret"}, "gateway/tls/secretName"),
        ({"gateway.grpc.port": 8001}, "gateway/grpc/port"),
        ({"tls.internal.newRevisions": True}, "set both, and enabled first"),
        ({"tls.internal.issuerRef.name": "internal"}, "tls.internal.enabled is false: set both"),
        ({"tls.internal.issuerRef.name": "Internal"}, "tls/internal/issuerRef/name"),
        ({"tls.internal.issuerRef.kind": ""}, "tls/internal/issuerRef/kind"),
        ({"tls.internal.issuerRef.group": "a b"}, "tls/internal/issuerRef/group"),
        ({"gateway.tls.dnsNames": ["a.example"]}, "gateway.tls.issuerRef.name is empty: name the issuer"),
        ({"gateway.tls.issuerRef.name": "x", "gateway.tls.dnsNames": ["https://a"]}, "gateway/tls/dnsNames/0"),
        ({"gateway.grpc.port": 8002}, "gateway/grpc/port"),
        ({"gateway.tls.minVersion": "1.1"}, "gateway/tls/minVersion"),
        ({"jobs.enabled": True, "jobs.replicaCount": 2}, "SQLite has one writer: name a Secret"),
        (
            {"jobs.enabled": True, "jobs.sqlite.claimName": "a", "jobs.databaseSecret.name": "b"},
            "files and batches are in one of both",
        ),
        (
            {"jobs.enabled": True, "gateway.tls.secretName": "t", "gateway.tls.clientCASecretName": "c"},
            "set gateway.tls.clientAuth to optional",
        ),
        ({"jobs.sqlite.maxBytes": 1}, "jobs/sqlite/maxBytes"),
        ({"console.sessionSeconds": 3601}, "console/sessionSeconds"),
        ({"console.publicUrl": "http://slipway.example"}, "console/publicUrl"),
        ({"console.oidc.issuer": "https://id.example"}, "console/oidc/clientId"),
        ({"console.oidc.scopes": ["groups"]}, "console/oidc/scopes"),
        ({"console.apiServer.url": "http://api"}, "console/apiServer/url"),
        ({"tracing.endpoint": "otel:4317"}, "tracing/endpoint"),
        ({"tracing.sample": 1.5}, "tracing/sample"),
        ({"jobs.existingSecret": "a", "jobs.databaseSecret.name": "b", "jobs.enabled": True}, "name two Secrets"),
        ({"gateway.podLabels": {"app.kubernetes.io/name": "x"}}, "invalid propertyName 'app.kubernetes.io/name'"),
        ({"commonLabels": {"team": "a b"}}, "commonLabels/team"),
        ({"gateway.autoscaling.enabled": True, "gateway.autoscaling.minReplicas": 11}, "is more than"),
        (
            {"gateway.autoscaling.enabled": True, "gateway.autoscaling.targetCPUUtilizationPercentage": 0},
            "all targets are 0: set targetInFlightRequests",
        ),
        (
            {
                "gateway.autoscaling.enabled": True,
                "gateway.autoscaling.targetInFlightRequests": 100,
                "rbac.namespaces": ["team-a"],
            },
            "the operator serves no metrics",
        ),
        (
            {
                "jobs.enabled": True,
                "jobs.databaseSecret.name": "b",
                "jobs.autoscaling": {"enabled": True, "targetLines": 0},
            },
            "all targets are 0: set targetLines",
        ),
        ({"jobs.enabled": True, "jobs.autoscaling.enabled": True}, "SQLite has one writer: name a Secret"),
        ({"jobs.autoscaling.targetLines": -1}, "jobs/autoscaling/targetLines"),
        ({"jobs.drainDelaySeconds": 301}, "jobs/drainDelaySeconds"),
        ({"gateway.ingress.enabled": True}, "gateway.ingress.hosts is empty: name a host"),
        ({"gateway.ingress.hosts": [{"host": "https://a"}]}, "gateway/ingress/hosts/0/host"),
        ({"gateway.httpRoute.enabled": True}, "gateway.httpRoute.parentRefs is empty: name the Gateway"),
        ({"gateway.httpRoute.timeouts.request": "forever"}, "gateway/httpRoute/timeouts/request"),
        ({"gateway.tls.clientAuth": "none"}, "gateway/tls/clientAuth"),
        ({"gateway.replicaCount": 0}, "gateway/replicaCount"),
        ({"gateway.plane": "on"}, "gateway/plane"),
        ({"gateway.service.type": "Nodeport"}, "gateway/service/type"),
        ({"operator.image.digest": "abc"}, "operator/image/digest"),
        ({"operator.hooks.signingSecret.key": ""}, "operator/hooks/signingSecret/key"),
        ({"operator.hooks.signingSecret.name": "My_Secret"}, "operator/hooks/signingSecret/name"),
        ({"operator.outbound.allowedCIDRs": ["10.96.0.1"]}, "operator/outbound/allowedCIDRs"),
        ({"operator.outbound.allowedHosts": ["*"]}, "operator/outbound/allowedHosts"),
        ({"registry.mlflow.url": "https://user:word@mlflow.example.com"}, "registry/mlflow/url"),
        ({"registry.mlflow.pollSeconds": 1}, "registry/mlflow/pollSeconds"),
        ({"auth.tokenReview.audience": "a,b"}, "auth/tokenReview/audience"),
        ({"gateway.stickyBy": ["cookie"]}, "gateway/stickyBy"),
        ({"gateway.allowedOrigins": ["app.example.com"]}, "gateway/allowedOrigins"),
        ({"gateway.allowedOrigins": ["https://app.example.com/"]}, "gateway/allowedOrigins"),
        ({"gateway.accessLog.to": "/var/log/x"}, "gateway/accessLog/to"),
        ({"gateway.accessLog.sample": 2}, "gateway/accessLog/sample"),
        ({"gateway.failsafe.ttlSeconds": 60}, "gateway/failsafe/ttlSeconds"),
        ({"keys.rotationSeconds": 60}, "keys/rotationSeconds"),
        ({"modelCache.namespaces": ["Team"]}, "modelCache/namespaces/0"),
        ({"modelCache.hostPath": "/"}, "modelCache/hostPath"),
        ({"modelCache.hostPath": "/var/../etc"}, "modelCache/hostPath"),
        ({"modelCache.maxBytes": 1}, "modelCache/maxBytes"),
        ({"metrics.engineSeries.maxPods": -1}, "metrics/engineSeries/maxPods"),
        ({"metrics.podMonitor.interval": "often"}, "metrics/podMonitor/interval"),
        ({"pricing.acceleratorHour": {"gpu": 2.5}}, "invalid propertyName 'gpu'"),
        ({"pricing.acceleratorHour": {"nvidia.com/gpu": 0}}, "pricing/acceleratorHour/nvidia.com~1gpu"),
        ({"pricing.acceleratorHour": {"nvidia.com/gpu": "2.50 EUR"}}, "pricing/acceleratorHour/nvidia.com~1gpu"),
        ({"pricing.cpuCoreHour": -1}, "pricing/cpuCoreHour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contradiction_is_refused_with_a_message(values: Values, message: str) -> None:
    assert message in refusal(_nested(values))


def _defaults() -> Values:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def _leaves(node: Any, path: str = "") -> list[str]:
    if isinstance(node, dict) and node:
        return [leaf for key, child in node.items() for leaf in _leaves(child, f"{path}.{key}".lstrip("."))]
    return [path]


def _json(values: Values) -> str:
    import json

    return json.dumps(_nested(values))


def _nested(values: Values) -> Values:
    """Dotted paths as the tree that helm wants."""
    tree: Values = {}
    for path, value in values.items():
        node = tree
        *parents, leaf = path.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree
