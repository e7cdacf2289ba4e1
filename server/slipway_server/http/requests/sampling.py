"""The sampling fields that the requests of all generating endpoints have."""

from msgspec import Struct

from ...engine.request import SamplingParams
from .fields import Penalty, Positive, Seed, Stop, Temperature, TopK, TopP


class Sampling(Struct, kw_only=True):
    """The fields that every generating endpoint shares."""

    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    seed: Seed | None = None
    stop: Stop = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    ignore_eos: bool = False
    stream: bool | None = False

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def params(self, max_tokens: int, stop_token_ids: tuple[int, ...], seed: int) -> SamplingParams:
        """`stop_token_ids`: the model's own. `seed`: the client's, or the one that was drawn for the stream."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=self.top_p or 1.0,
            top_k=max(0, self.top_k or 0),
            seed=seed,
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            stop_token_ids=() if self.ignore_eos else stop_token_ids,
        )
