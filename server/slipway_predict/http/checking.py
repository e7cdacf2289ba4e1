"""Whether a request fits the model: its inputs, their datatypes and shapes, the outputs that it names (pure)."""

from slipway_process.serving.errors import invalid

from ..description import ModelDescription
from ..executor import InferRequest
from ..tensors import Tensor, TensorError, TensorSpec
from .images import raise_for_shape, takes
from .texts.rows import row_tokens


def checked(description: ModelDescription, request: InferRequest) -> InferRequest:
    """The request with its inputs in the model's order. Raises HttpError with the name of the input that is wrong."""
    given = {tensor.name: tensor for tensor in request.inputs}
    if len(given) != len(request.inputs):
        raise invalid("An input is there twice: send each one once.", "inputs")
    for name in given:
        if description.input(name) is None:
            known = ", ".join(spec.name for spec in description.inputs)
            raise invalid(f"The model has no input {name!r}; its inputs are {known}.", name)
    ordered = []
    for spec in description.inputs:
        tensor = given.get(spec.name)
        if tensor is None:
            raise invalid(
                f"The input {spec.name!r} is missing: {spec.datatype} of the shape {list(spec.shape)}.", spec.name
            )
        _check_input(description, spec, tensor)
        ordered.append(tensor)
    if description.batched:
        _check_rows(ordered)
    outputs = request.outputs or tuple(spec.name for spec in description.outputs)
    for name in outputs:
        if description.output(name) is None:
            known = ", ".join(spec.name for spec in description.outputs)
            raise invalid(f"The model has no output {name!r}; its outputs are {known}.", name)
    tokens = row_tokens(description.text, ordered) if description.text else 0
    return InferRequest(
        tuple(ordered), outputs, request.parameters, request.priority, request.timeout_s, row_tokens=tokens
    )


def _check_input(description: ModelDescription, spec: TensorSpec, tensor: Tensor) -> None:
    if takes(description, tensor):
        raise_for_shape(tensor, spec)
        return
    try:
        spec.check(tensor)
    except TensorError as error:
        raise invalid(f"The {error}.", spec.name) from None


def _check_rows(tensors: list[Tensor]) -> None:
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.rows != first.rows:
            raise invalid(
                f"The input {tensor.name!r} has {tensor.rows} rows, {first.name!r} {first.rows}: send equally many.",
                tensor.name,
            )
