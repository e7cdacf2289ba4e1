"""The types of accelerators that spec.resources.accelerator.type knows: which nodes have them, by common labels.

A node has a type when it has one of the labels: nvidia.com/gpu.product of NVIDIA's GPU feature discovery,
karpenter.k8s.aws/instance-gpu-name of Karpenter on AWS, cloud.google.com/gke-accelerator of GKE, or
amd.com/gpu.product-name of AMD's GPU operator. Node autoscalers know Karpenter's and GKE's labels
before a node exists.
"""

import math
from collections.abc import Mapping, Sequence

from slipway_operator.api.objects import Json
from slipway_operator.model import quantity
from slipway_operator.model.inputs.pod_inputs import MIG, MPS, TIME_SLICING, Resources

NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
PRODUCT, AMD_PRODUCT = "nvidia.com/gpu.product", "amd.com/gpu.product-name"
KARPENTER, KARPENTER_MEMORY = "karpenter.k8s.aws/instance-gpu-name", "karpenter.k8s.aws/instance-gpu-memory"
GKE = "cloud.google.com/gke-accelerator"
# In MiB, by NVIDIA's GPU feature discovery and by Karpenter.
DEVICE_MEMORY = ("nvidia.com/gpu.memory", KARPENTER_MEMORY)
SHARING, GKE_SHARING = "nvidia.com/gpu.sharing-strategy", "cloud.google.com/gke-gpu-sharing-strategy"
# MPS of GKE needs the node's IPC namespace, which model pods do not get.
_SHARED = {TIME_SLICING: ((SHARING, "time-slicing"), (GKE_SHARING, "time-sharing")), MPS: ((SHARING, "mps"),)}


def _term(**labels: tuple[str, ...]) -> Json:
    keys = {
        "product": PRODUCT,
        "amd_product": AMD_PRODUCT,
        "karpenter": KARPENTER,
        "memory_mib": KARPENTER_MEMORY,
        "gke": GKE,
    }
    found = [{"key": keys[name], "operator": "In", "values": list(values)} for name, values in labels.items()]
    return {"matchExpressions": found}


def _type(resource: str, *terms: Json) -> Json:
    return {
        "resource": resource,
        "nodeSelectorTerms": list(terms),
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}],
    }


BUILT_IN: Mapping[str, Json] = {
    "t4": _type(NVIDIA, _term(product=("Tesla-T4",)), _term(karpenter=("t4",)), _term(gke=("nvidia-tesla-t4",))),
    "v100": _type(
        NVIDIA,
        _term(product=("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-16GB")),
        _term(karpenter=("v100",)),
        _term(gke=("nvidia-tesla-v100",)),
    ),
    "a10g": _type(NVIDIA, _term(product=("NVIDIA-A10G",)), _term(karpenter=("a10g",))),
    "a100-40gb": _type(
        NVIDIA,
        _term(product=("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB")),
        _term(karpenter=("a100",), memory_mib=("40960",)),
        _term(gke=("nvidia-tesla-a100",)),
    ),
    "a100-80gb": _type(
        NVIDIA,
        _term(product=("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe")),
        _term(karpenter=("a100",), memory_mib=("81920",)),
        _term(gke=("nvidia-a100-80gb",)),
    ),
    "l4": _type(NVIDIA, _term(product=("NVIDIA-L4",)), _term(karpenter=("l4",)), _term(gke=("nvidia-l4",))),
    "l40s": _type(NVIDIA, _term(product=("NVIDIA-L40S",)), _term(karpenter=("l40s",))),
    "h100": _type(
        NVIDIA,
        _term(product=("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL")),
        _term(karpenter=("h100",)),
        _term(gke=("nvidia-h100-80gb", "nvidia-h100-mega-80gb")),
    ),
    "h200": _type(
        NVIDIA,
        _term(product=("NVIDIA-H200", "NVIDIA-H200-NVL")),
        _term(karpenter=("h200",)),
        _term(gke=("nvidia-h200-141gb",)),
    ),
    "b200": _type(NVIDIA, _term(product=("NVIDIA-B200",)), _term(karpenter=("b200",)), _term(gke=("nvidia-b200",))),
    "mi300x": _type(AMD, _term(amd_product=("AMD_Instinct_MI300X_OAM",))),
}

# What a device of a type has by its name, in the smallest variant; its driver leaves some less.
MEMORY: Mapping[str, str] = {
    "t4": "16Gi",
    "v100": "16Gi",
    "a10g": "24Gi",
    "a100-40gb": "40Gi",
    "a100-80gb": "80Gi",
    "l4": "24Gi",
    "l40s": "48Gi",
    "h100": "80Gi",
    "h200": "141G",
    "b200": "192G",
    "mi300x": "192Gi",
}


def device_terms(resources: Resources) -> list[Sequence[Json]]:
    """Return what the devices need of nodes: lists of node selector terms, which are alternatives in each list.

    A type and a MIG profile say by themselves which memory there is, and were compared with the need.
    """
    needs: list[Sequence[Json]] = []
    by_name = resources.accelerator_type or (resources.accelerator or ("", 0))[0].startswith(MIG)
    if resources.device_memory and not by_name:
        # Gt compares whole numbers, and is true above its value.
        above = math.ceil(quantity.parse(resources.device_memory) / 2**20) - 1
        needs.append([_requires(key, "Gt", str(above)) for key in DEVICE_MEMORY])
    if resources.sharing:
        needs.append([_requires(key, "In", value) for key, value in _SHARED[resources.sharing]])
    return needs


def type_terms(terms: Sequence[Json], resources: Resources) -> Sequence[Json]:
    """Return the terms of a type, for shared devices too: NVIDIA's GPU feature discovery marks their product."""
    if not resources.sharing:
        return terms
    return [{"matchExpressions": [_shared(one) for one in term["matchExpressions"]]} for term in terms]


def _shared(requirement: Json) -> Json:
    if requirement["key"] != PRODUCT or requirement["operator"] != "In":
        return requirement
    return {**requirement, "values": [*requirement["values"], *(f"{name}-SHARED" for name in requirement["values"])]}


def _requires(key: str, operator: str, value: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": [value]}]}
