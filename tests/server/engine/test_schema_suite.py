"""The JSON Schema Test Suite (draft 2020-12) against the grammars of schemas: what is accepted is valid.

The suite is in the source distribution of jsonschema, which pip downloads by its digest.
"""

import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from slipway_process.model_folder import checkpoint
from slipway_server.engine.grammars.compiler import GrammarError, compile_grammar, load_tokenizer
from slipway_server.http.requests.structured import of_schema
from tests.conftest import MODELS

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(300)]

SUITE = "jsonschema==4.26.0 --hash=sha256:0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
LEAST_RIGHT = 0.98  # of all cases: decided as the suite does, or refused by the name of the keyword
LEAST_DECIDED_RIGHT = 0.96  # of the cases of schemas that are accepted; what is not right is refused, never accepted


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "requirements.txt").write_text(SUITE + "\n")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, "--require-hashes", "-r", folder / "requirements.txt", "-d", folder], check=True)
    (archive,) = folder.glob("*.tar.gz")
    groups = []
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda one: one.name):
            if member.isfile() and Path(member.name).parent.match("json/tests/draft2020-12"):
                read = files.extractfile(member)
                assert read
                groups += json.load(read)
    return groups


def accepts(tokenizer: LLTokenizer, matcher: LLMatcher, text: str) -> bool:
    one = matcher.deep_copy()
    return one.consume_tokens(tokenizer.tokenize_str(text)) and one.is_accepting()


def test_what_a_schema_accepts_is_valid(suite: list[dict[str, Any]]) -> None:
    model = MODELS / "tiny-v1"
    tokenizer = load_tokenizer(model / "tokenizer.json", 2048, checkpoint.read(model).stop_token_ids)
    found: Counter[str] = Counter()
    for group in suite:
        grammar = of_schema(group["schema"], "")
        try:
            matcher = compile_grammar(tokenizer, grammar.kind, grammar.text)
        except GrammarError as error:
            assert str(error)
            found["refused"] += len(group["tests"])
            continue
        for case in group["tests"]:
            accepted = accepts(tokenizer, matcher, json.dumps(case["data"], ensure_ascii=False))
            found["right" if accepted == case["valid"] else "wrong" if accepted else "stricter"] += 1
    decided = found["right"] + found["stricter"] + found["wrong"]
    print(
        f"JSON Schema Test Suite, draft 2020-12: of {found.total()} cases {found['right']} right, "
        f"{found['stricter']} valid but not accepted, {found['wrong']} accepted but not valid, "
        f"{found['refused']} of schemas that are refused with a reason; "
        f"{found['right'] / decided:.1%} of those decided, {1 - found['stricter'] / found.total():.1%} of all"
    )
    assert found.total() > 1000 and found["wrong"] == 0
    assert found["right"] / decided >= LEAST_DECIDED_RIGHT
    assert (found["right"] + found["refused"]) / found.total() >= LEAST_RIGHT
