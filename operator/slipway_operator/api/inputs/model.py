"""The model of a pod: where its weights are, how they are read, and under which name they are served."""

from typing import Annotated

from pydantic import Field

from slipway_contracts.api.markers import CelRule, OneOf, implied_defaults, rule
from slipway_contracts.api.types import ApiType, Int32

HUB_TOKEN = "HF_TOKEN"  # variable that the fetcher reads, and default key of the Secret
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
ObjectKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._A-Za-z0-9]+$")]

ModelUri = Annotated[
    str,
    Field(min_length=1, max_length=2048),
    CelRule(
        "self.matches('^(hf|https|s3|gs|az|oci|pvc|file)://.+') || self.startsWith('models:')",
        "spec.model.uri must start with hf://, https://, s3://, gs://, az://, oci://, pvc://, file:// or models:/; "
        "write for example hf://org/model",
    ),
    CelRule(
        "!self.startsWith('models:') || self.matches("
        r"'^models:/[^/:@?#%\\x00-\\x20\\x7f][^/:@?#%\\x00-\\x1f\\x7f]{0,255}"
        "(@[A-Za-z0-9_-]{1,128}|/[1-9][0-9]{0,8})$')",
        "a models:/ uri names a registered model by an alias or a version: write models:/NAME@ALIAS or models:/NAME/3",
    ),
    CelRule(
        "!self.startsWith('s3://') || (self.matches('^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?$') && !self.matches('^s3://[^/]*[.][.-]'))",
        "an s3:// uri names a bucket and a folder: write s3://bucket/folder",
    ),
    CelRule(
        r"!self.startsWith('gs://') || self.matches('^gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/[^?#]*)?$')",
        "a gs:// uri names a bucket and a folder: write gs://bucket/folder",
    ),
    CelRule(
        "!self.startsWith('az://') || (self.matches('^az://[a-z0-9][a-z0-9-]{1,61}[a-z0-9](/[^?#]*)?$') && "
        "!self.matches('^az://[^/]*--'))",
        "an az:// uri names a container and a folder: write az://container/folder",
    ),
    CelRule(
        "!self.startsWith('oci://') || self.matches('^oci://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
        "(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?@sha256:[0-9a-f]{64})$')",
        "an oci:// uri names a repository with a tag or a digest: write oci://registry/repository:v1, or @sha256: "
        "and 64 hexadecimal digits",
    ),
    CelRule(
        "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "an hf:// uri names one repository: write hf://org/model, and a branch or commit in spec.model.revision",
    ),
    CelRule(
        "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?$')",
        "a pvc:// uri names a claim in the same namespace: write pvc://claim/path",
    ),
    CelRule(
        "!self.startsWith('file://') || self.startsWith('file:///')",
        "a file:// uri holds an absolute path: write file:///path/to/model",
    ),
    CelRule(
        "!self.contains('/../') && !self.endsWith('/..')",
        "spec.model.uri must not contain '..': write the path without it",
    ),
    CelRule(
        "self.startsWith('oci://') || !self.matches('^[a-z0-9]+://[^/?#]*@')",
        "spec.model.uri must not hold credentials, because other users can read it: write the host without them",
    ),
]
DraftUri = Annotated[
    str,
    Field(min_length=1, max_length=2048),
    CelRule(
        "self.matches('^(hf|https|s3|gs|az|oci)://.+')",
        "spec.model.draft.uri must start with hf://, https://, s3://, gs://, az:// or oci://, because each pod "
        "downloads the draft model; write for example hf://org/model",
    ),
    CelRule(
        "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$')",
        "an hf:// uri names one repository: write hf://org/model, and a branch or commit in spec.model.draft.revision",
    ),
    CelRule(
        "!self.contains('/../') && !self.endsWith('/..')",
        "spec.model.draft.uri must not contain '..': write the path without it",
    ),
    CelRule(
        "self.startsWith('oci://') || !self.matches('^[a-z0-9]+://[^/?#]*@')",
        "spec.model.draft.uri must not hold credentials, because other users can read it: write the host without them",
    ),
]
ModelName = Annotated[
    str,
    Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$"),
    CelRule(
        "!self.contains('/')",
        (
            "spec.model.name must not contain '/', because namespace/name is how a ModelDeployment is always "
            "reached; write for example Qwen3-0.6B"
        ),
    ),
]
ModelVersion = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]


class ModelSecretRef(ApiType):
    """Reference to a Secret in the same namespace with the credentials of the model's source. Only the fetcher gets
    them. No revision, status or log contains them. A changed Secret creates no new revision; new pods use it. For
    hf:// it has the token of the hub. For s3:// its keys are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
    AWS_SESSION_TOKEN, for gs:// GOOGLE_SERVICE_ACCOUNT_KEY, for az:// AZURE_STORAGE_ACCOUNT_NAME,
    AZURE_STORAGE_ACCOUNT_KEY and AZURE_STORAGE_SAS_TOKEN; each of them is optional. For oci:// its type is
    kubernetes.io/dockerconfigjson. For models:/ its keys are MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
    MLFLOW_TRACKING_PASSWORD, and those of s3:// where the files are there; the operator reads the former, too."""

    name: ObjectName
    """Name of the Secret."""
    key: ObjectKey = HUB_TOKEN
    """Key of the hub's token in the Secret. The Secrets of other sources have fixed keys."""


class ObjectStoreSpec(ApiType):
    """Where the store of an s3://, gs:// or az:// model is. Default is the cloud's own."""

    endpoint: (
        Annotated[
            str,
            Field(min_length=1, max_length=256),
            CelRule(
                r"self.matches('^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$')",
                "spec.model.objectStore.endpoint is the URL of a store: write https://host or http://host:9000",
            ),
        ]
        | None
    ) = None
    """URL of an S3-compatible store, for example MinIO, Ceph or versitygw; or another endpoint of gs and az. Buckets
    are in the path."""
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")] | None = None
    """Region of an s3:// bucket. Default is us-east-1."""
    account: Annotated[str, Field(pattern=r"^[a-z0-9]{3,24}$")] | None = None
    """Storage account of an az:// container."""


_STORE = "self.uri.matches('^(s3|gs|az)://')"


@rule(
    "!has(self.revision) || !self.uri.startsWith('oci://')",
    "spec.model.draft.revision does not go with oci://: write the tag or the digest into spec.model.draft.uri",
)
class DraftModelSpec(ApiType):
    """Smaller model that drafts tokens, which the model then verifies, several in a step (speculative decoding). It is
    a part of the revision. With slipway the responses stay the same; docs/speculation.md has what it gains, and where.
    slipway refuses one whose tokenizer is not that of the model, and uses dtype and quantization of the model for it
    too."""

    uri: DraftUri
    """Location of its weights: hf://org/model, https://host/model.tar, s3://bucket/folder, gs://bucket/folder,
    az://container/folder or oci://registry/repository:tag. Each pod downloads it, without a cache. Credentials and
    object store are those of the model where both uris begin alike, else none."""
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Branch, tag or commit of an hf:// repository, or sha256: and a digest, as spec.model.revision. Each pod reads
    a branch by itself."""


@rule(
    f"!has(self.objectStore) || {_STORE} || self.uri.startsWith('models:')",
    "spec.model.objectStore goes with s3://, gs://, az:// and models:/ only: remove it, or use a uri like "
    "s3://bucket/model",
)
@rule(
    "!has(self.objectStore) || !has(self.objectStore.region) || self.uri.matches('^(s3://|models:)')",
    "spec.model.objectStore.region is for s3:// and models:/ only: remove it",
)
@rule(
    "!has(self.objectStore) || !has(self.objectStore.account) || self.uri.startsWith('az://')",
    "spec.model.objectStore.account is for az:// only: remove it",
)
@rule(
    "!self.uri.startsWith('az://') || has(self.secretRef) || (has(self.objectStore) && has(self.objectStore.account))",
    "an az:// model needs its storage account: write spec.model.objectStore.account, or a Secret with "
    "AZURE_STORAGE_ACCOUNT_NAME in spec.model.secretRef",
)
@rule(
    f"!has(self.secretRef) || !has(self.secretRef.key) || self.secretRef.key == '{HUB_TOKEN}' || "
    "self.uri.startsWith('hf://')",
    "spec.model.secretRef.key is for hf:// only, because the Secrets of other sources have fixed keys: remove it",
)
@rule(
    "!has(self.revision) || !self.uri.startsWith('oci://')",
    "spec.model.revision does not go with oci://: write the tag or the digest into spec.model.uri, for example "
    "oci://registry/repository:v1",
)
@rule(
    "!has(self.revision) || self.uri.matches('^(hf|oci)://') || self.revision.matches('^sha256:[0-9a-f]{64}$')",
    (
        "spec.model.revision of an https://, s3://, gs://, az://, pvc://, file:// or models:/ model is its digest: "
        "write sha256: and 64 hexadecimal digits in lower case"
    ),
)
@rule(
    "!has(self.revision) || !self.uri.startsWith('models:') || !self.uri.contains('@')",
    "spec.model.revision does not go with an alias of a registered model, which may move: remove it, or write the "
    "version, for example models:/chat/3",
)
@rule(
    "!has(self.revision) || !self.uri.startsWith('hf://') || !self.revision.startsWith('sha256:')",
    (
        "spec.model.revision of an hf:// model is a branch, a tag or a commit: write for example main, or the "
        "commit's 40 digits"
    ),
)
@rule(
    "!has(self.secretRef) || self.uri.matches('^(hf|s3|gs|az|oci)://') || self.uri.startsWith('models:')",
    (
        "spec.model.secretRef holds credentials of a hub, an object store or a registry and goes with hf://, s3://, "
        "gs://, az://, oci:// and models:/ only: remove it, or use a uri like hf://org/model"
    ),
)
@rule(
    "!has(self.cache) || self.cache == 'none' || !self.uri.matches('^(pvc|file)://')",
    "spec.model.cache is for models that are downloaded, and a pvc:// or file:// model is used where it is: remove it",
)
@rule(
    "!has(self.cache) || self.cache != 'image' || self.uri.startsWith('oci://')",
    "spec.model.cache: image mounts the image of an oci:// model: write node, claim or none for other models",
)
@rule(
    "(has(self.cache) && self.cache == 'claim') == has(self.cacheClaimName)",
    "spec.model.cacheClaimName names the claim of cache: claim, and goes with it only: write both, or none",
)
@rule(
    "!has(self.format) || self.format == 'auto' || (has(self.task) && self.task in ['predict', 'classify', 'rerank'])",
    "spec.model.format is for task: predict, classify and rerank: remove it, or write spec.model.task: predict",
)
@rule(
    "!has(self.task) || !(self.task in ['predict', 'classify', 'rerank']) || ((!has(self.dtype) || "
    "self.dtype == 'auto') && (!has(self.quantization) || self.quantization == 'none') && !has(self.maxModelLen))",
    "spec.model.dtype, quantization and maxModelLen are for language models: remove them, because the task is "
    "predict, classify or rerank",
)
@rule(
    "!has(self.task) || self.task != 'rerank' || !has(self.format) || self.format in ['auto', 'transformers']",
    "spec.model.task: rerank is for rerankers of Hugging Face: remove spec.model.format, or write transformers",
)
@rule(
    "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
    (
        "spec.model.name cannot change, because clients send it: create a second ModelDeployment with the new "
        "name and move them over"
    ),
)
@implied_defaults()
class ModelSpec(ApiType):
    """Model and the name under which it is served. A change creates a new revision and starts a rollout."""

    uri: ModelUri
    """Location of the weights: hf://org/model, https://host/model.tar, s3://bucket/folder, gs://bucket/folder,
    az://container/folder, oci://registry/repository:tag, pvc://claim/path, file:///path inside the server image, or
    models:/NAME@ALIAS and models:/NAME/VERSION of the MLflow registry that the administrator has set. An alias that
    moves to another version starts a rollout of that version; status.registry has what was resolved. Weights must be
    safetensors, or files of spec.model.format with task: predict or classify; pickled files are rejected."""
    secret_ref: ModelSecretRef | None = None
    object_store: ObjectStoreSpec | None = None
    revision: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Branch, tag or commit of an hf:// repository; sha256: and a digest for an https:// archive or manifest, or for
    the files of an s3://, gs://, az://, pvc:// or file:// folder, or of models:/NAME/VERSION. A branch is resolved
    once: the first pod reports the commit, and all later pods of the revision load it. docs/server.md describes the
    digest."""
    cache: Annotated[str, OneOf(("none", "node", "claim", "image"))] = "none"
    """Where downloaded weights are kept for other pods. none: each pod has its own copy. node: on each node, where an
    administrator has switched it on for the namespace (modelCache of the chart's values). claim: in a
    PersistentVolumeClaim that all pods share. image: an oci:// model is an image with its files in /models; the kubelet
    pulls it once for each node and mounts it. That needs image volumes, which Kubernetes has by default from 1.35."""
    cache_claim_name: ObjectName | None = None
    """PersistentVolumeClaim of cache: claim, in the same namespace. Its access mode is ReadWriteMany, its file system
    has flock, and user or group 65532 may write."""
    name: ModelName | None = None
    """Name that clients send as "model". Default is metadata.name. It cannot be changed. The first ModelDeployment to
    claim a name owns it; NAMESPACE/NAME of the ModelDeployment always works."""
    version: ModelVersion | None = None
    """Human-readable version; responses contain it as model_version. Default is the hash of the revision."""
    task: Annotated[str, OneOf(("auto", "generate", "embed", "predict", "classify", "rerank"))] = "auto"
    """Task of the model: generate text, embed it, predict, or rerank. auto uses the configuration of the model, which
    is then one of language. predict is for classic models (classification, regression, other tensors);
    docs/predict.md describes it. classify is predict for a classifier that names its labels, and refuses any other
    model. rerank is for rerankers (cross-encoders) of Hugging Face, which score documents for a query."""
    format: Annotated[str, OneOf(("auto", "onnx", "xgboost", "lightgbm", "skops", "transformers"))] = "auto"
    """Format of a model with task: predict or classify. auto uses the names and the first bytes of the files.
    transformers is a classifier of images or texts of Hugging Face, which auto does not look for; with task: rerank it
    is the only one. Pickles, joblib and TorchScript are rejected."""
    dtype: Annotated[str, OneOf(("auto", "float32", "bfloat16", "float16"))] = "auto"
    """Number format of weights and computations. auto uses that of the checkpoint."""
    quantization: Annotated[str, OneOf(("none", "int8", "int4"))] = "none"
    """Quantization of the model. int8 computes linear layers with 8-bit weights and activations, which are converted
    from the checkpoint at load. It uses half the memory and is up to twice as fast on CPUs with AVX512-VNNI. int4
    rounds the weights of layers to 4 bits in groups of 64 instead, and the head to 8. On GPUs, on x86-64 CPUs without
    AVX2 and on aarch64 CPUs without dotprod the server does not start. Nor does it where the perplexity of a short text
    is above 1.5 times that of the weights as they are. Checkpoints that are published with 4 or 8 bits need none of
    this."""
    max_model_len: Annotated[Int32, Field(ge=16, le=10000000)] | None = None
    """Maximum length of prompt plus answer in tokens. Default is the limit of the model."""
    draft: DraftModelSpec | None = None
