"""Every bound that clients have together gives each of them a share: docs/bounds.yaml and the settings agree."""

import ast
import re
from typing import Any

import pytest

from docs.bounds_page import rows
from testkit import ROOT

ROWS = rows()
PARTS = (
    *("gateway/slipway_gateway", "jobs/slipway_jobs", "operator/slipway_operator", "console/slipway_console"),
    *("server/slipway_server", "server/slipway_predict", "process/slipway_process/serving"),
)
# Bounds of one request, one tenant, one model or one file: no client can use up another one's part of them.
OF_ONE = {
    "access_log_max_bytes": "a file on disk",
    "access_log_max_files": "files on disk",
    "inference_log_max_content_bytes": "one record",
    "generation_log_max_content_bytes": "one record",
    "state_max_age_s": "a time",
    "max_body_bytes": "one body",
    "cache_max_response_bytes": "one response",
    "plane_max_body_bytes": "one body",
    "websocket_max_message_bytes": "one message",
    "max_client_percentage": "the share itself",
    "max_header_bytes": "one line",
    "max_connections_per_address": "the share itself",
    "max_attempts": "one request",
    "max_resumes": "one stream",
    "mirror_max_body_bytes": "one body",
    "mirror_max_cpu_percentage": "a rate at which copies stop, which no client waits for",
    "max_ejection_time_s": "a time",
    "max_ejection_percent": "one revision",
    "feedback_max_age_s": "a time",
    "max_file_bytes": "one file",
    "external_max_response_bytes": "one response",
    "max_lines": "one file",
    "max_line_bytes": "one line",
    "max_response_bytes": "one response",
    "max_tenant_bytes": "the share itself",
    "max_tenant_result_bytes": "the share itself",
    "max_tenant_batches": "the share itself",
    "max_tenant_webhooks": "the share itself",
    "max_tenant_idempotency_keys": "the share itself",
    "max_tenant_conversations": "the share itself",
    "max_tenant_items": "the share itself",
    "max_tenant_conversation_bytes": "the share itself",
    "max_conversation_items": "one conversation",
    "max_context_bytes": "one request",
    "max_batch_size": "one batch",
    "max_queue_delay_microseconds": "a time",
    "max_batch_s": "a time",
    "max_model_memory_bytes": "one model",
    "pool_max_load_s": "a time",
    "max_image_pixels": "one image",
    "max_model_len": "one request",
    "max_lora_rank": "one adapter",
    "max_engine_restarts": "restarts, which no client waits for",
    "max_step_s": "a time",
    "max_inter_token_s": "a time",
    "max_perplexity_ratio": "of a check at load",
}


def settings_with_bounds() -> set[str]:
    found = set()
    for folder in PARTS:
        tree = ast.parse((ROOT / folder / "settings.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
                found |= {name} if re.search(r"(?:^|_)max_", name) else set()
    return found


def test_each_setting_that_bounds_all_clients_is_listed() -> None:
    listed = {row["where"].rpartition(":")[2] for row in ROWS}
    named = settings_with_bounds()
    assert len(named) > 40
    assert not named - listed - OF_ONE.keys(), "add a row to docs/bounds.yaml: whose share of it is how much?"
    assert not OF_ONE.keys() - named, "these settings are gone"


def test_each_total_that_is_divided_is_listed() -> None:
    """`Places`, `Shares` and `FairMemory` divide a total: each file that makes one is named by a row."""
    named = {row.get("counted") or row["where"].rpartition(":")[0] for row in ROWS}
    pattern = re.compile(r"^[^#\n]*\b(?:(?:Mirror)?Places|Shares|FairMemory)(?:\[[^()]+\])?\(", re.MULTILINE)
    made = {
        str(path.relative_to(ROOT))
        for part in PARTS
        for path in sorted((ROOT / part).rglob("*.py"))
        if any(not line[0].lstrip().startswith("class ") for line in pattern.finditer(path.read_text()))
    }
    assert len(made) > 12
    assert not made - named, "add a row to docs/bounds.yaml: whose share of it is how much?"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["bound"])
def test_a_bound_is_where_its_row_says_and_its_share_has_tests(row: dict[str, Any]) -> None:
    path, _, name = row["where"].rpartition(":")
    assert re.search(rf"\b{name}\b\s*[:=(\[,]", (ROOT / path).read_text()), row["where"]
    if "reason" in row:
        assert "share" not in row and len(row["reason"]) > 20
        return
    text = "\n".join(file.read_text() for file in sorted((ROOT / "tests").rglob("test_*.py")))
    known = set(re.findall(r"^\s*(?:async )?def (test_\w+)", text, re.MULTILINE))
    assert row["share"] and row["tests"] and set(row["tests"]) <= known, set(row["tests"]) - known
