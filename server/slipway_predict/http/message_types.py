"""Messages of the Open Inference Protocol's gRPC that this server reads and writes.

They are described here and not generated: generated code registers `inference.ModelInferRequest` for its whole process,
where a client's own library has it too, and refuses another major version of protobuf than it was made with. Numbers
and types are those of `open_inference_grpc.proto` and of Triton's `grpc_service.proto`.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "inference"
_TYPES = descriptor_pb2.FieldDescriptorProto

# Each field: name, number, type (of a message its name), and "[]" behind the type of a list.
_TENSOR = {
    "name": (1, "STRING"),
    "datatype": (2, "STRING"),
    "shape": (3, "INT64[]"),
    "parameters": (4, "InferParameter{}"),
    "contents": (5, "InferTensorContents"),
}
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "InferParameter": {
        "bool_param": (1, "BOOL"),
        "int64_param": (2, "INT64"),
        "string_param": (3, "STRING"),
        "double_param": (4, "DOUBLE"),
        "uint64_param": (5, "UINT64"),
    },
    "InferTensorContents": {
        "bool_contents": (1, "BOOL[]"),
        "int_contents": (2, "INT32[]"),
        "int64_contents": (3, "INT64[]"),
        "uint_contents": (4, "UINT32[]"),
        "uint64_contents": (5, "UINT64[]"),
        "fp32_contents": (6, "FLOAT[]"),
        "fp64_contents": (7, "DOUBLE[]"),
        "bytes_contents": (8, "BYTES[]"),
    },
    "InferInputTensor": _TENSOR,
    "InferOutputTensor": _TENSOR,
    "InferRequestedOutputTensor": {"name": (1, "STRING"), "parameters": (2, "InferParameter{}")},
    "ModelInferRequest": {
        "model_name": (1, "STRING"),
        "model_version": (2, "STRING"),
        "id": (3, "STRING"),
        "parameters": (4, "InferParameter{}"),
        "inputs": (5, "InferInputTensor[]"),
        "outputs": (6, "InferRequestedOutputTensor[]"),
        "raw_input_contents": (7, "BYTES[]"),
    },
    "ModelInferResponse": {
        "model_name": (1, "STRING"),
        "model_version": (2, "STRING"),
        "id": (3, "STRING"),
        "parameters": (4, "InferParameter{}"),
        "outputs": (5, "InferOutputTensor[]"),
        "raw_output_contents": (6, "BYTES[]"),
    },
}
_ONE_OF = {"InferParameter": "parameter_choice"}  # messages whose fields are all of one `oneof`, and its name


def _field(message: Any, name: str, number: int, kind: str) -> None:
    made = message.field.add(name=name, number=number)
    made.label = made.LABEL_REPEATED if kind.endswith(("[]", "{}")) else made.LABEL_OPTIONAL
    if kind.endswith("{}"):
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _field(entry, "key", 1, "STRING")
        _field(entry, "value", 2, kind.removesuffix("{}"))
        made.type, made.type_name = _TYPES.TYPE_MESSAGE, f".{_PACKAGE}.{message.name}.{entry.name}"
        return
    kind = kind.removesuffix("[]")
    if kind in _MESSAGES:
        made.type, made.type_name = _TYPES.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        made.type = getattr(_TYPES, f"TYPE_{kind}")


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="open_inference.proto", package=_PACKAGE, syntax="proto3")
    for name, described in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for field, (number, kind) in described.items():
            _field(message, field, number, kind)
            if name in _ONE_OF:
                message.field[-1].oneof_index = 0
    return file


# A pool of our own: nothing else in the process sees these names.
_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_described().SerializeToString())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


ModelInferRequest: Any = _class("ModelInferRequest")
ModelInferResponse: Any = _class("ModelInferResponse")
