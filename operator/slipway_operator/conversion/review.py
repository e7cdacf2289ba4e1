"""A ConversionReview of the API server and its answer; pure. The work between two steps is bounded, whatever is in it.

https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/
"""

from collections.abc import Generator

import msgspec
from msgspec import Raw, Struct

from slipway_operator.api.v1beta1.differences import GROUP, NotConvertible, converted
from slipway_process import json_bounds

API_VERSION, KIND = "apiextensions.k8s.io/v1", "ConversionReview"
MOST_OBJECTS = 10_000
MAX_OBJECT_BYTES = 3 << 20  # the API server's own limit of a request is 3 MiB, and that of an object in etcd 1.5
# Of a review, whose objects are only counted here, and of one object, which is decoded.
_MAX_TEXTS, _MAX_NUMBERS = 1 << 21, 1 << 20
_MAX_TEXTS_OF_ONE, _MAX_NUMBERS_OF_ONE = 1 << 18, 1 << 18
_STEP_BYTES = 1 << 19  # of objects, between two steps

Answer = Generator[None, None, bytes]


class BadReview(ValueError):
    """The body is no ConversionReview; the message is for whoever sent it."""


class _Request(Struct, rename="camel"):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion")
    objects: list[Raw]


class _Review(Struct, rename="camel"):
    api_version: str
    kind: str
    request: _Request


class _Result(Struct, rename="camel", omit_defaults=True):
    status: str
    message: str = ""


class _Response(Struct, rename="camel"):
    uid: str
    result: _Result
    converted_objects: list[Raw]


class _Answer(Struct, rename="camel"):
    response: _Response
    api_version: str = API_VERSION
    kind: str = KIND


def answer(body: bytes) -> Answer:
    """The answer, in steps: others may run at each one. Either all objects are converted, or the result says why not.

    Raises:
        BadReview: the body is no review, or has too much of something.
    """
    yield from _count(body)
    request = _read(body).request
    try:
        objects = yield from _convert(request)
    except NotConvertible as error:
        return msgspec.json.encode(_Answer(_Response(request.uid, _Result("Failure", str(error)), [])))
    return msgspec.json.encode(_Answer(_Response(request.uid, _Result("Success"), objects)))


def _count(body: bytes) -> Generator[None, None, None]:
    try:
        yield from json_bounds.slices(body, _MAX_TEXTS, _MAX_NUMBERS)
    except json_bounds.TooManyValues as error:
        raise BadReview(f"the review {error}") from None


def _read(body: bytes) -> _Review:
    try:
        review = msgspec.json.decode(body, type=_Review)
    except RecursionError:
        raise BadReview("the review is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadReview(f"the body is no {KIND}: {error}") from None
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise BadReview(f"the body is no {KIND} of {API_VERSION}")
    if len(review.request.uid) > 128:
        raise BadReview("request.uid has more than 128 characters")
    if len(review.request.objects) > MOST_OBJECTS:
        raise BadReview(f"request.objects has more than {MOST_OBJECTS} items: list fewer objects in a page")
    return review


def _convert(request: _Request) -> Generator[None, None, list[Raw]]:
    group, _, version = request.desired_api_version.rpartition("/")
    if group != GROUP:
        raise NotConvertible(f"request.desiredAPIVersion {request.desired_api_version[:64]} is not of {GROUP}")
    objects, size = [], 0
    for place, raw in enumerate(request.objects):
        if (size := size + len(raw)) >= _STEP_BYTES:
            size = 0
            yield
        try:
            objects.append(_converted(bytes(raw), version))
        except NotConvertible as error:
            raise NotConvertible(f"request.objects[{place}]: {error}") from None
    return objects


def _converted(raw: bytes, version: str) -> Raw:
    if len(raw) > MAX_OBJECT_BYTES:
        raise NotConvertible(f"it has more than {MAX_OBJECT_BYTES} bytes")
    try:
        json_bounds.check(raw, _MAX_TEXTS_OF_ONE, _MAX_NUMBERS_OF_ONE)
        obj = msgspec.json.decode(raw)
        if not isinstance(obj, dict):
            raise NotConvertible("it is no object")
        return Raw(msgspec.json.encode(converted(obj, version)))
    except json_bounds.TooManyValues as error:
        raise NotConvertible(f"it {error}") from None
    except RecursionError:
        raise NotConvertible("it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise NotConvertible(f"it is no JSON: {error}") from None
