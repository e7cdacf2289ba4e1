"""The cases of a model's source: object stores and registries."""

from typing import Any

from tests.crds.objects import Case, Change

DIGEST = "@sha256:" + "0a" * 32


def _model(**fields: Any) -> Change:
    return {"model": fields}


def _uri(*uris: str) -> tuple[Change, ...]:
    return tuple(_model(uri=uri) for uri in uris)


def _az(*uris: str) -> tuple[Change, ...]:
    return tuple(_model(uri=uri, secretRef={"name": "keys"}) for uri in uris)


def _store(uri: str = "s3://bucket/m", **fields: Any) -> Change:
    return _model(uri=uri, objectStore=fields)


CEL_CASES = (
    Case(
        "cache-source",
        "spec.model.cache is for models that are downloaded, and a pvc:// or file:// model is used where it is: "
        "remove it",
        bad=(_model(uri="pvc://weights/m", cache="node"), _model(uri="file:///m", cache="claim", cacheClaimName="a")),
        good=(_model(uri="hf://org/m", cache="node"), _model(uri="pvc://weights/m", cache="none")),
    ),
    Case(
        "cache-claim",
        "spec.model.cacheClaimName names the claim of cache: claim, and goes with it only: write both, or none",
        bad=(
            _model(uri="hf://org/m", cache="claim"),
            _model(uri="hf://org/m", cacheClaimName="models"),
            _model(uri="hf://org/m", cache="node", cacheClaimName="models"),
        ),
        good=(_model(uri="hf://org/m", cache="claim", cacheClaimName="models"),),
    ),
    Case(
        "cache-image",
        "spec.model.cache: image mounts the image of an oci:// model: write node, claim or none for other models",
        bad=(_model(uri="hf://org/m", cache="image"), _model(uri="s3://bucket/m", cache="image")),
        good=(_model(uri="oci://registry.example.com/team/chat:v1", cache="image"),),
    ),
    Case(
        "uri-s3",
        "an s3:// uri names a bucket and a folder: write s3://bucket/folder",
        bad=_uri("s3://B/m", "s3://ab/m", "s3://my_bucket/m", "s3://-ab/m", "s3://a..b/m", "s3:///m", "s3://abc/m?x=1"),
        good=_uri("s3://bucket/a/b", "s3://my.bucket-1", "s3://abc/", "s3://a.b/m", "s3://" + "a" * 63),
    ),
    Case(
        "uri-gs",
        "a gs:// uri names a bucket and a folder: write gs://bucket/folder",
        bad=_uri("gs://B/m", "gs://ab/m", "gs://-ab/m", "gs://abc/m#x"),
        good=_uri("gs://bucket/a/b", "gs://my_bucket.example.com", "gs://abc/"),
    ),
    Case(
        "uri-az",
        "an az:// uri names a container and a folder: write az://container/folder",
        bad=_az("az://B/m", "az://ab/m", "az://a_b/m", "az://a--b/m", "az://my.box/m"),
        good=_az("az://models/a/b", "az://my-models", "az://abc/a--b"),
    ),
    Case(
        "az-account",
        "an az:// model needs its storage account",
        bad=(*_uri("az://models/m"), _store("az://models/m", endpoint="https://h")),
        good=(_store("az://models/m", account="team1"), *_az("az://models/m")),
    ),
    Case(
        "uri-oci",
        "an oci:// uri names a repository with a tag or a digest",
        bad=_uri(
            *("oci://registry/model", "oci://registry/Model:v1", "oci:///model:v1", "oci://registry:v1", "oci://h/r:"),
            *("oci://user@h/r:v1", "oci://h/r@sha256:12", "oci://h/r@sha512:" + "0" * 128, "oci://h//r:v1"),
        ),
        good=_uri(
            *("oci://ghcr.io/org/model:v1", "oci://localhost:5000/m:latest", f"oci://r.example/a/b/c{DIGEST}"),
            f"oci://r.example/a/b_c-d.e:v1{DIGEST}",
        ),
    ),
    Case(
        "oci-revision",
        "spec.model.revision does not go with oci://: write the tag or the digest into spec.model.uri",
        bad=(_model(uri="oci://h/r:v1", revision="v1"), _model(uri="oci://h/r:v1", revision="sha256:" + "0" * 64)),
        good=_uri("oci://h/r:v1"),
    ),
    Case(
        "store-uri",
        "spec.model.objectStore goes with s3://, gs://, az:// and models:/ only",
        bad=(_store("hf://org/m", endpoint="https://h"), _store("https://h/m.tar", region="a"), _store("oci://h/r:1")),
        good=(_store(), _store("gs://bucket/m", endpoint="https://h"), _store("models:/m/3", endpoint="https://h")),
    ),
    Case(
        "store-region",
        "spec.model.objectStore.region is for s3:// and models:/ only: remove it",
        bad=(_store("gs://bucket/m", region="eu"), _store("az://bucket/m", region="eu", account="team1")),
        good=(_store(region="eu-central-1"), _store("models:/m@x", region="eu-central-1")),
    ),
    Case(
        "store-account",
        "spec.model.objectStore.account is for az:// only: remove it",
        bad=(_store(account="team1"), _store("gs://bucket/m", account="team1")),
        good=(_store("az://models/m", account="team1"),),
    ),
    Case(
        "store-endpoint",
        "spec.model.objectStore.endpoint is the URL of a store: write https://host or http://host:9000",
        bad=tuple(
            _store(endpoint=url)
            for url in (
                "minio:9000",
                "s3://host",
                "https://user:word@host",
                "https://host?x=1",
                "https://a b",
                "https://",
            )
        ),
        good=tuple(
            _store(endpoint=url)
            for url in ("http://minio.models.svc:9000", "https://s3.example.com", "http://host:10000/account")
        ),
    ),
    Case(
        "secret-key",
        "spec.model.secretRef.key is for hf:// only",
        bad=tuple(
            _model(uri=uri, secretRef={"name": "keys", "key": "token"}) for uri in ("s3://bucket/m", "oci://h/r:v1")
        ),
        good=(_model(uri="s3://bucket/m", secretRef={"name": "keys"}), _model(secretRef={"name": "a", "key": "token"})),
    ),
)

SCHEMA_CASES = (
    Case(
        "model.objectStore.region",
        "spec.model.objectStore.region",
        bad=tuple(_store(region=name) for name in ("", "EU", "eu_1", "eu-", "a" * 65)),
        good=tuple(_store(region=name) for name in ("us-east-1", "garage")),
    ),
    Case(
        "model.objectStore.account",
        "spec.model.objectStore.account",
        bad=tuple(_store("az://models/m", account=name) for name in ("ab", "Team", "a-b", "a" * 25)),
        good=tuple(_store("az://models/m", account=name) for name in ("abc", "a1" * 12)),
    ),
    Case(
        "model.objectStore.endpoint",
        "spec.model.objectStore.endpoint",
        bad=(_store(endpoint=""), _store(endpoint="https://" + "h" * 256)),
        good=(_store(endpoint="https://h"),),
    ),
)
