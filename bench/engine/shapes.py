"""The models that are measured: their sizes, and what one token costs in operations and bytes (pure)."""

from dataclasses import dataclass

BF16_BYTES = 2
VISIBLE_FROM = 512  # ids below are the end, single bytes and room; above they are words


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with tied embeddings and random weights. Sizes in elements."""

    name: str
    family: str  # of the Hugging Face config: qwen3 or llama
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    context_tokens: int = 8192
    prompt_tokens: tuple[int, int] = (32, 512)  # of a request of the closed loop: least, most
    output_tokens: int = 64

    @property
    def layer_parameters(self) -> int:
        """Of all linear layers between the embedding and the head."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head_parameters(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        return self.layer_parameters + self.head_parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """In bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_size * BF16_BYTES

    def operations(self, prompt_tokens: int, output_tokens: int, requests: int) -> float:
        """Multiplications and additions in linear layers for so many requests together.

        The last token of an answer is never fed back, and the head runs once for each token of an answer. Attention is
        left out: it comes on top, by the length of the context.
        """
        through_layers = prompt_tokens + output_tokens - requests
        return 2.0 * (through_layers * self.layer_parameters + output_tokens * self.head_parameters)


QWEN06 = Shape("qwen06", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936)
TINY = Shape("tiny", "llama", 10, 512, 8, 4, 64, 1408, 32000)
WIDE = Shape("wide", "qwen3", 10, 512, 8, 4, 64, 1408, 151936)
# A token of it costs as much as 13 of the 0.6B shape: its requests are short.
QWEN8B = Shape("qwen8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, prompt_tokens=(16, 128), output_tokens=32)
SHAPES = {shape.name: shape for shape in (QWEN06, TINY, WIDE, QWEN8B)}


def ceiling_tokens_per_s(shape: Shape, gflops: float, prompt_tokens: int, output_tokens: int, requests: int) -> float:
    """Output tokens per second if nothing but the linear layers took time, at the machine's own rate of products."""
    return output_tokens / (shape.operations(prompt_tokens, output_tokens, requests) / (gflops * 1e9))


def decode_roofline_tokens_per_s(shape: Shape, gigabytes_per_s: float, bytes_per_weight: float) -> float:
    """One sequence at a time: every weight is read once for each token. The cache is left out (a few percent)."""
    return gigabytes_per_s * 1e9 / (shape.parameters * bytes_per_weight)
