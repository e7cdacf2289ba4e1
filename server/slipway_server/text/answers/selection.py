"""Chooses the formats of tool calls and reasoning that a model writes, by its chat template."""

from dataclasses import dataclass

AUTO, NONE = "auto", "none"


@dataclass(frozen=True, slots=True)
class AnswerFormats:
    """`calls`: one of `formats.FORMATS`, or "". `reasoning`: qwen3, deepseek_r1, or ""."""

    calls: str = ""
    reasoning: str = ""

    def thinking(self, prompt: str) -> bool:
        """Whether the answer to the prompt begins inside the reasoning, without an opening tag."""
        end = prompt.rstrip()
        if self.reasoning == "deepseek_r1":
            return not end.endswith("</think>")
        return bool(self.reasoning) and end.endswith("<think>")


CONTENT_ONLY = AnswerFormats()


def select_formats(template: str, *, calls: str = AUTO, reasoning: str = AUTO) -> AnswerFormats:
    """`template`: the source of the chat template. `calls` and `reasoning`: the flags' values, a name, auto or none."""
    return AnswerFormats(
        _calls_of(template) if calls == AUTO else calls.replace(NONE, ""),
        ("qwen3" if "</think>" in template else "") if reasoning == AUTO else reasoning.replace(NONE, ""),
    )


def _calls_of(template: str) -> str:
    if "[TOOL_CALLS]" in template:
        return "mistral"
    # Qwen3-Coder and others write XML within the same tags.
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return "hermes"
    if "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3"
    return ""
