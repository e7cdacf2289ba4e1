"""How long a context may be, by the rotary embedding that config.json describes."""

from typing import Any

import pytest

from slipway_process.model_folder.rope import LONGEST_TOKENS, longest_contexts, rope_of, rotation

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("rope", "longest", "expected"),
    [
        ({"rope_scaling": YARN}, 64, (256, 256)),  # Qwen2.5's README
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, 64, (256, 256)),
        ({"rope_scaling": YARN}, 256, (256, 256)),  # Qwen3's README names the longer one itself
        ({"rope_scaling": YARN | {"factor": 2}}, 256, (256, 256)),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 64, (64, 128)),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}},
            131072,
            None,
        ),
        ({"rope_scaling": {"type": "su", "short_factor": [1], "long_factor": [2]}}, 131072, None),
        ({"rope_scaling": {"type": "yarn", "long_factor": [2], "factor": 32}}, 131072, None),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 64, None),
        ({"rope_scaling": None}, 64, None),
        ({}, 64, None),
        ({"rope_scaling": {"type": "yarn", "factor": "4"}}, 64, None),
        ({"rope_scaling": {"type": "yarn", "factor": True}}, 64, None),
        ({"rope_scaling": {"type": "yarn", "factor": float("inf")}}, 64, None),
        ({"rope_scaling": {"type": "yarn", "factor": 1e300}}, 64, (LONGEST_TOKENS, LONGEST_TOKENS)),
        ({"rope_scaling": "yarn"}, 64, None),
    ],
)
def test_yarn_lengthens_the_context(rope: dict[str, Any], longest: int, expected: tuple[int, int] | None) -> None:
    assert longest_contexts(rope, longest) == (expected or (longest, longest))


def test_su_and_the_first_yarn_of_phi3_are_longrope() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    base = {"max_position_embeddings": 128, "original_max_position_embeddings": 32, "rope_theta": 10000.0}

    def turned(kind: str) -> object:
        return rotation(rope_of(base | {"rope_scaling": factors | {"type": kind}}, "full_attention", 1.0), 8, 128)

    assert turned("su") == turned("yarn") == turned("longrope")
