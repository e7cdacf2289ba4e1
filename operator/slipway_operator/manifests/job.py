"""The Job of a measurement, and the names of Jobs."""

import base64
import hashlib
from typing import Any

from slipway_operator.manifests.owner import Owner
from slipway_operator.model import labels
from slipway_operator.model.analysis.measure import JOB_KEPT_S, Job

ANALYSIS = "analysis"  # value of the component label
NAME_LENGTH = 10  # of the digest: with it the longest name of a ModelDeployment still gives a valid Job name


def analysis_job(owner: Owner, key: str, job: Job) -> dict[str, Any]:
    """Return a Job with the closed spec of a template; its name identifies the measurement, so it is created once.

    It has a deadline, and a TTL that deletes it if the operator does not. Its pods have no label of ours, so no
    autoscaler, Service or NetworkPolicy for model pods selects them.
    """
    metadata = owner.child_metadata(job_name(key))
    metadata["labels"] = {
        labels.MODEL_DEPLOYMENT: owner.name,
        labels.MANAGED_BY: "slipway",
        labels.COMPONENT: ANALYSIS,
    }
    spec = {"ttlSecondsAfterFinished": JOB_KEPT_S, **job.spec, "activeDeadlineSeconds": job.deadline_s}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def job_name(key: str) -> str:
    """Return the end of a Job's name: a digest of `key`, which identifies the Job."""
    return base64.b32encode(hashlib.sha256(key.encode()).digest()).decode().lower()[:NAME_LENGTH]
