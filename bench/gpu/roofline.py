"""What a decode must move at least, and how near to it a measured one is (pure)."""

from bench.engine.shapes import BF16_BYTES, QWEN06, Shape

LLAMA8 = Shape("llama8", "llama", 32, 4096, 32, 8, 128, 14336, 128256)
SHAPES = {shape.name: shape for shape in (QWEN06, LLAMA8)}


def step_bytes(shape: Shape, batch: int, context_tokens: float) -> float:
    """All weights once, and keys and values of every sequence, in bfloat16. Activations are left out: a percent."""
    return shape.parameters * BF16_BYTES + batch * context_tokens * shape.kv_bytes_per_token


def share(shape: Shape, batch: int, context_tokens: float, step_s: float, bytes_per_s: float) -> float:
    """Of the device's bandwidth that a step of decodes uses."""
    return step_bytes(shape, batch, context_tokens) / bytes_per_s / step_s


def config_of(shape: Shape) -> dict[str, object]:
    """config.json of a model of this shape."""
    return {
        "model_type": shape.family,
        "architectures": [{"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[shape.family]],
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.inner,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def bars(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """The promises about a Hopper GPU, as far as there are rows for them."""
    found = []
    for row in rows:
        if row["kind"] == "decode":
            least = least_share(str(row["model"]), int(str(row["batch"])))
            name, value = f"{row['model']}, batch {row['batch']}: share of the bandwidth", row["share"]
        elif row["kind"] == "peer" and row["peer"] == "transformers":
            least, name, value = 3.0, f"{row['model']}: times transformers' continuous batching", row["ours_times"]
        elif row["kind"] == "sampled":
            least, name, value = 0.97, f"{row['model']}: rate of sampled requests, of greedy", row["sampled_times"]
        elif row["kind"] == "tokens":
            least, name, value = 1.0, f"{row['model']}: share of greedy answers equal to transformers'", row["equal"]
        else:
            continue
        if least is not None:
            found.append({"bar": name, "value": value, "limit": f">= {least}", "ok": float(str(value)) >= least})
    return found


def least_share(model: str, batch: int) -> float | None:
    if batch == 1:
        return {"qwen06": 0.4, "llama8": 0.8}[model]
    return 0.75 if 64 <= batch <= 256 else None
