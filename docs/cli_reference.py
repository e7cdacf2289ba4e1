"""docs/cli.md: the verbs of `slipway` as the parser knows them, between words that are written here."""

from collections.abc import Iterator
from pathlib import Path

import click

from slipway_cli import errors
from slipway_cli.commands import cli

RECORDING = Path(__file__).resolve().parent / "recordings" / "status-watch.txt"
WHERE = ("namespace", "context", "kubeconfig", "request_timeout")

_HEADER = """\
# The command line: `slipway` and `kubectl slipway`

Generated from the parser by `python docs/generate.py`; do not edit.

A thin client of the API server: all it knows it reads there, and whatever it changes is a patch that it prints, so that
anybody can do the same with kubectl. It needs no more rights than its user has.

## Install
```
pip install '.[cli]'                            # in a checkout; 'slipway[cli]' where your package index has it
slipway version
kubectl plugin list                             # shows kubectl-slipway: `kubectl slipway` is the same program
source <(slipway completion bash)               # or zsh, fish; `kubectl slipway` completes wherever kubectl does
```
It finds the cluster as kubectl does: `--kubeconfig`, else `$KUBECONFIG`, else `~/.kube/config`; inside a pod by the
service account. The namespace is that of the context.

## A rollout by hand
```
kubectl patch mdep chat --type=merge -p '{"spec":{"model":{"uri":"hf://org/model-2","version":"2"}}}'
slipway wait chat --for=paused --timeout=30m    # ends with 0 when it waits for you, 4 when it was rejected, 3 when late
slipway status chat                             # revisions, pods and why they are not ready, steps, last events
slipway promote chat                            # ends this pause; --full skips all steps that are left
slipway abort chat                              # or: back to the stable revision, at once
slipway retry chat                              # the same revision once more
slipway history chat --diff                     # what the new revision changes in its pods
slipway undo chat                               # the revision that served before, without steps
slipway wait chat --for=stable=2                # by spec.model.version, or by the revision's hash
```
`pause` and `resume` set `spec.paused` and hold a rollout wherever it is; a pause among the steps is ended by `promote`.
The patches name what they are about (`status.rollout.token`): one that comes twice, or late, does no harm. `--dry-run`
prints the kubectl command and changes nothing. A verb that finds nothing to do says why, and ends with 1.

## Why it was rejected
```
slipway analyze chat                            # the judge once more: evidence over time, each metric, what is expected
slipway analyze chat --png evidence.png         # the same as a picture; needs matplotlib
kubectl get mdep,atmpl -o json > saved.json     # for later: a promotion, or the next revision, forgets the analysis
slipway analyze chat --file saved.json          # asks no cluster
```
[The judge](judge.md#looking-again) says what is shown.
"""

_RIGHTS = """
## Rights
To look: `get` and `list` of `modeldeployments`, and `list` of `pods`, `events` (without them `status` says what it does
not show) and `controllerrevisions` (for `history` and `undo`); `analyze` asks for `get` of `analysistemplates`, too. To
steer: `patch` of `modeldeployments`. Kubernetes' own roles `view` and `edit` give all of that, once the chart has added
ModelDeployments to them. `status` reads the operator's Lease (`status.lease`), which the chart lets everybody `get`.

## While no operator runs
A status is as old as its last write, and says nothing of that itself. So `slipway status` looks at the Lease: when
nobody renews it, a line says `no operator runs`, and no forecast is shown. It is not shown either when requests were
counted for the last time more than five minutes ago. Pods are read anew, so they are as they are now.
"""


def reference() -> str:
    """The page as Markdown."""
    verbs = [cli.commands[name] for name in cli.list_commands(click.Context(cli))]
    parts = [_HEADER, *_exit_codes(), *_where(), "\n## Verbs\n", *(line for verb in verbs for line in _verb(verb))]
    return "\n".join([*parts, *_recording(), _RIGHTS]).rstrip() + "\n"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n| code | meaning |\n|---|---|"
    yield "| 0 | done; of `wait`: the state is reached |"
    yield f"| {errors.FAILED} | an error, or nothing to do: one sentence on stderr says what |"
    yield f"| {click.UsageError.exit_code} | the command line makes no sense |"
    yield f"| {errors.TIMED_OUT} | `wait`: the time is over |"
    yield f"| {errors.REJECTED} | `wait`: the revision was rejected, or the spec is refused; no waiting helps |"
    yield f"| {errors.INTERRUPTED} | interrupted, as `status --watch` always is |\n"


def _where() -> Iterator[str]:
    yield "## Options of every verb that asks a cluster\nThey may stand before the verb or after it.\n"
    yield from _options([option for option in cli.params if option.name in WHERE])


def _verb(verb: click.Command) -> Iterator[str]:
    words = [f"slipway {verb.name}", *(_argument(item) for item in verb.params if isinstance(item, click.Argument))]
    yield f"### `{' '.join(words)}`\n"
    yield "\n\n".join(" ".join(part.split()) for part in (verb.help or "").split("\n\n")) + "\n"
    own = [item for item in verb.params if isinstance(item, click.Option) and item.name not in WHERE]
    if own:
        yield from _options(own)
        yield ""


def _argument(argument: click.Argument) -> str:
    name = (argument.name or "").upper()
    name = "|".join(argument.type.choices) if isinstance(argument.type, click.Choice) else name
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _options(options: list[click.Parameter]) -> Iterator[str]:
    yield "| option | what |\n|---|---|"
    for option in options:
        assert isinstance(option, click.Option), "arguments stand in the title"
        value = "" if option.is_flag else f" {_value(option)}"
        names = ", ".join(f"`{name}{value}`" for name in option.opts)
        required = "**Required.** " if option.required else ""
        yield f"| {names} | {required}{' '.join((option.help or '').split())} |"


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices).replace("|", "\\|")
    return option.metavar or option.type.name.upper()


def _recording() -> Iterator[str]:
    """A rollout as `status --watch` showed it on a real cluster, where somebody recorded one."""
    if RECORDING.exists():
        yield "## A rollout, recorded\n`slipway status chat --watch` on a real cluster:"
        yield f"```\n{RECORDING.read_text().rstrip()}\n```"
