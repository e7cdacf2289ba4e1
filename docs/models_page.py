"""The page docs/models.md: published models and the server's verdict on each, from docs/models.yaml and the code."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from slipway_server.models.support import ModelSupport, check_support

FACTS = Path(__file__).resolve().parent / "models.yaml"

_HEADER = """\
# Models

Generated from `docs/models.yaml` (`config.json` of published repositories) and the server's own code by
`python docs/generate.py`; do not edit.

Which published models the server can serve, and how. To try your own model folder:
```
slipway-server --model DIR
```

| served | meaning |
|---|---|
| native | the engine's own decoder: fast, `--quantization int8` and `int4` on CPUs, the kernels of GPUs |
| fallback | transformers' modules over the engine's cache: correct, slower; the log says why. GPUs: `--allow-slow` |
| encoder | `/v1/embeddings`, pooled by the folder's `1_Pooling/config.json` |
| classifier | `--task rerank`, or `--task classify --format transformers`: [predict.md](predict.md#texts) |
| refused | one sentence on stderr and in the termination log, exit status 65; the server guesses nothing |

The server tries an unlisted family with transformers. It refuses it if it is neither a generator nor an encoder of
text, if it needs code of the folder, or if the self-test fails. Weights are safetensors in float32, bfloat16 or
float16, or quantized as below. The server serves repositories with their own code (`auto_map`) if it supports the
architecture without it; it never runs that code.

## Quantized checkpoints

Of native models, by `quantization_config` in config.json (or AutoGPTQ's and AutoAWQ's own file). Nothing needs to be
set. Layers that a repository leaves plain stay plain.

| `quant_method` | read | in memory, C kernels | compared with |
|---|---|---|---|
| `awq` | version `gemm`, 4 bits, any group | 4 bits | AutoAWQ 0.2.9 |
| `gptq` | 4 bits, `gptq` and `gptq_v2` | 4 bits | AutoGPTQ 0.7.1 |
| `gptq` | 4 bits with `desc_act`; 8 bits | bfloat16 | AutoGPTQ 0.7.1 |
| `compressed-tensors` | `pack-quantized` of 4 bits, groups and channels | 4 bits | compressed-tensors 0.20.1 |
| `compressed-tensors` | the same with `actorder`; of 8 bits | bfloat16 | its documented layout; 0.20.1 |
| `compressed-tensors` | `int-quantized` (W8A8), tensor and channel, symmetric or not | bfloat16 | 0.20.1 |
| `compressed-tensors` | `float-quantized` (FP8): tensor, channel, block | bfloat16 | 0.20.1 |
| `fp8` | `weight_scale_inv` blocks of DeepSeek and Qwen; one `weight_scale` | bfloat16 | 0.20.1 |
| `bitsandbytes` | `nf4` and `fp4`, nested scales too; int8 | bfloat16 | bitsandbytes 0.50.2 |

- *4 bits*: groups of a multiple of 32 inputs. Inputs of such a layer become int8 with a scale for each row and group;
  logits of a small model are off by 0.3 % of their size, with bfloat16 weights by 0.16 %. Other groups are widened to
  bfloat16.
- *bfloat16* takes the memory of an unquantized model, and rounds each weight once more. With `--quantization int8`
  or `int4` they are rounded to that instead.
- Scales of activations (`input_scale`, `activation_scheme`) have no effect: inputs are computed in more bits.
- GPUs, and CPUs without the C kernels, widen all of them to the dtype of the model. `float16` checkpoints are computed
  in bfloat16 on CPUs.
- Everything else is refused by name: AWQ's `gemv`, `marlin`, 2 and 3 bits, layers with bits of their own (`dynamic`),
  `fbgemm_fp8`, mxfp4, nvfp4, ModelOpt, HQQ, sparse weights, quantized KV caches. Unknown fields are refused too: they
  may change numbers. Take a repository of the same model in one of the layouts above, such as AWQ, GPTQ or
  compressed-tensors W4A16.

[quantize.yaml](../examples/quantize.yaml) makes 4 bits a canary: pairs of responses say what it changes, and a person
lets it go on. Wrong scales give fluent, whole responses, so it has a
[bound on the tokens that stable chooses and it does not](judge.md#a-bound-for-other-weights): beyond that it is
rejected before a client sees it.

## Repositories
"""


@dataclass(frozen=True)
class Published:
    """The facts about one repository, and its expected verdict."""

    repository: str
    served: str
    config: dict[str, Any]
    modules: bool = False
    note: str = ""

    @property
    def verdict(self) -> ModelSupport:
        return check_support(self.config, pooled=self.modules)


def published() -> list[Published]:
    """Every entry of docs/models.yaml."""
    entries = [Published(**entry) for entry in yaml.load(FACTS.read_text(), yaml.CSafeLoader)]
    return [Published(**(vars(entry) | {"config": filled(entry.config)})) for entry in entries]


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """Longrope has a factor for each frequency; the facts have a few, and this interpolates the others."""
    rope = config.get("rope_scaling")
    if not rope or "long_factor" not in rope:
        return config
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    count = int(size * config.get("partial_rotary_factor", 1.0)) // 2
    lists = {name: _between(rope[name], count) for name in ("short_factor", "long_factor")}
    return config | {"rope_scaling": rope | lists}


def _between(points: list[float], count: int) -> list[float]:
    steps = [index * (len(points) - 1) / max(1, count - 1) for index in range(count)]
    below = [min(int(step), len(points) - 2) if len(points) > 1 else 0 for step in steps]
    above = [min(index + 1, len(points) - 1) for index in below]
    near = zip(steps, below, above, strict=True)
    return [points[low] + (points[high] - points[low]) * (step - low) for step, low, high in near]


def page() -> str:
    """The whole page.

    Raises:
        LookupError: when the code's verdict on a repository differs from the facts.
    """
    entries = published()
    if wrong := [entry.repository for entry in entries if entry.verdict.served != entry.served]:
        raise LookupError(f"docs/models.yaml and the code do not agree on {', '.join(wrong)}")
    counts = Counter(entry.served for entry in entries)
    listed = ", ".join(f"{counts[kind]} {kind}" for kind in ("native", "fallback", "encoder", "classifier", "refused"))
    return "\n".join([_HEADER, f"{len(entries)} repositories: {listed}.\n", *_rows(entries)]) + "\n"


def _rows(entries: list[Published]) -> Iterator[str]:
    yield "| repository | `model_type` | served | why not native |\n|---|---|---|---|"
    for entry in entries:
        named = f"{entry.repository} ({entry.note})" if entry.note else entry.repository
        yield f"| {named} | {entry.config['model_type']} | {entry.served} | {_why(entry)} |"


def _why(entry: Published) -> str:
    """Short: the table above lists what is served."""
    reason = entry.verdict.reason.partition(": this server serves")[0].partition(" is not one of ")[0]
    return reason.replace("|", "\\|") if entry.served == "refused" else f"no built-in family: {reason}" * bool(reason)
