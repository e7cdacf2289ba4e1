"""Before a model serves: whether a row has the same answer alone and in a batch, and how long a batch takes."""

import logging
import time

import msgspec
import numpy

from ..description import ModelDescription
from ..formats import LoadedModel
from ..tensors import BF16, BOOL, BYTES, FLOATS, NUMPY, Tensor, TensorSpec

log = logging.getLogger("slipway.predict")

REPEATS = 2
BUDGET_S = 3.0  # for all sizes; the largest ones are left out where they take longer
RELATIVE, ABSOLUTE = 1e-2, 1e-3  # answers of the same row may differ by so much: other kernels, other orders of sums


def example(spec: TensorSpec, rows: int, seed: int) -> Tensor:
    """Rows of small numbers. Sizes that are open are 1."""
    shape = [1 if size == -1 else size for size in spec.shape]
    if spec.shape and spec.shape[0] == -1:
        shape[0] = rows
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, numpy.full(shape, b"example", object))
    if spec.datatype in FLOATS and spec.datatype != BF16:
        values = numpy.random.default_rng(seed).uniform(0.0, 1.0, shape)
    else:
        values = numpy.zeros(shape) if spec.datatype in (BF16, BOOL) else numpy.ones(shape)
    return Tensor(spec.name, spec.datatype, values.astype(NUMPY[spec.datatype]))


def checked(model: LoadedModel) -> ModelDescription:
    """The description, without batches for a model whose rows depend on one another or that returns other counts."""
    description = model.description
    if not description.batched:
        return description
    names = [spec.name for spec in description.outputs]
    try:
        given = [example(spec, 2, seed=7) for spec in description.inputs]
        together = model.run(given, names)
        alone = [model.run([one.part(row, row + 1) for one in given], names) for row in (0, 1)]
    except Exception as error:
        log.warning("the model does not take an example of its own inputs: %s", str(error)[:300])
        return description
    for at, output in enumerate(together):
        apart = [one[at] for one in alone]
        if output.rows != 2 or any(one.rows != 1 for one in apart):
            log.warning("output %s does not have a row for each row of the inputs: requests run alone", output.name)
            return msgspec.structs.replace(description, batched=False)
        if output.datatype in ("FP32", "FP64") and not all(
            numpy.allclose(output.array[row], apart[row].array[0], RELATIVE, ABSOLUTE, equal_nan=True) for row in (0, 1)
        ):
            log.warning("rows of %s depend on other rows of the batch: requests run alone", output.name)
            return msgspec.structs.replace(description, batched=False)
    return description


def measure(model: LoadedModel, description: ModelDescription, max_batch_size: int) -> list[tuple[int, float]]:
    """Rows and seconds of batches of 1, 2, 4, …; none where the model does not take examples."""
    names, measured, began = [spec.name for spec in description.outputs], [], time.perf_counter()
    for rows in _sizes(max_batch_size if description.batched else 1):
        given = [example(spec, rows, seed=rows) for spec in description.inputs]
        try:
            for repeat in range(REPEATS + 1):
                started = time.perf_counter()
                model.run(given, names)
                if repeat:  # the first one allocates
                    measured.append((rows, time.perf_counter() - started))
        except Exception:
            return measured
        if time.perf_counter() - began > BUDGET_S / 2:
            break
    return measured


def _sizes(largest: int) -> list[int]:
    sizes, size = [], 1
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest]
