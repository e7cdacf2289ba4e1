"""docs/cli.md: the commands of `slipway` from its parser, with the prose of the page."""

from collections.abc import Iterator
from pathlib import Path

import click

from slipway_cli import errors
from slipway_cli.commands.root import cli

RECORDING = Path(__file__).resolve().parent / "recordings" / "status-watch.txt"
WHERE = ("namespace", "context", "kubeconfig", "request_timeout")

_HEADER = """\
# The command line: `slipway` and `kubectl slipway`

Generated from the parser by `python docs/generate.py`; do not edit.

`slipway` shows and controls rollouts. It is a thin client of the API server: it reads everything there, and each change
is a patch that it prints, so you can do the same with kubectl. It uses your own permissions.

## Install
```
pip install '.[cli]'                            # in a checkout; 'slipway[cli]' where your package index has it
slipway version
kubectl plugin list                             # shows kubectl-slipway: `kubectl slipway` is the same program
source <(slipway completion bash)               # or zsh, fish; `kubectl slipway` completes wherever kubectl does
```
It selects the cluster like kubectl: `--kubeconfig`, else `$KUBECONFIG`, else `~/.kube/config`; inside a pod the service
account. The default namespace is the context's.

## A rollout by hand
```
kubectl patch mdep chat --type=merge -p '{"spec":{"model":{"uri":"hf://org/model-2","version":"2"}}}'
slipway wait chat --for=paused --timeout=30m    # exits with 0 when paused, 4 when rejected, 3 after the timeout
slipway status chat                             # revisions, pods and why they are not ready, steps, last events
slipway promote chat                            # ends this pause; --full skips all remaining steps
slipway abort chat                              # or: back to the stable revision, at once
slipway retry chat                              # the same revision once more
slipway history chat --diff                     # pod inputs that the new revision changes
slipway history chat                            # revisions, and why attempts of them were rejected
slipway undo chat                               # the revision that served before, without steps
slipway wait chat --for=stable=2                # by spec.model.version, or by the revision's hash
```
`pause` and `resume` set and clear `spec.paused`, which holds a rollout at any point. `promote` ends a pause step. The
patches name their target (`status.rollout.token`), so a repeated or late patch changes nothing. `--dry-run` prints the
kubectl command and changes nothing. A command with nothing to do prints why and exits with 1. `undo` prints a warning
when the revision was rejected before; `status` shows a line while a rollback holds.

## Why it was rejected
```
slipway analyze chat                            # runs the judge again: evidence over time, each metric, forecast
slipway analyze chat --png evidence.png         # as a picture; needs matplotlib
kubectl get mdep,atmpl -o json > saved.json     # a promotion, or the next revision, removes the analysis
slipway analyze chat --file saved.json          # without a cluster
```
[The judge](judge.md#looking-again) explains the output.

## Models that share a pool
```
slipway pools                                   # ModelPools: ready pods, models, how many are in memory
slipway pools shared                            # its models: which pods have them in memory, why one is not served
slipway status iris                             # of a member: its pool beside its revisions
```
[Pools](predict.md#pools-in-a-cluster) explains them.

## Models of a registry
```
slipway models                                  # versions of registered models, their aliases, and what serves which
slipway models chat -A                          # of one model, from the ModelDeployments of all namespaces
slipway status chat                             # of one ModelDeployment: what the registry has about its version
```
[Model registry](registry.md) explains them.

## Signed verdicts
```
slipway verdict chat --verify public.pem        # the conclusion, its numbers, and whether the operator signed it
slipway verdict --file - --verify public.pem    # of an envelope from elsewhere, such as a tag of the registry
```
[Signed verdicts](verdicts.md) explains them.

## Public names that lead by rules
```
slipway routes                                  # ModelRoutes: their names, and whether their targets are there
slipway route explain chat --tenant team-a --prompt-bytes 20000 --tools --header X-Tier=gold
slipway route explain chat --at 2026-01-31T22:30:00+01:00 --file routes.yaml   # without a cluster
```
[Model routes](model-routes.md) explains them.

## Experiments
```
slipway experiments                             # Experiments: their phase, arms and verdict
slipway experiment status sizes                 # units and outcomes by arm, intervals of differences, the verdict
slipway experiment explain sizes --unit user-7 --tenant team-a    # which arm a unit gets, and why
```
[Experiments](experiments.md) explains them.

## Tenants and their API keys
```
slipway keys create team-a --expires-in 90d     # prints the key, once
slipway keys list                               # which keys are valid, expire soon, have expired
slipway keys rotate team-a k7Qm2xPw             # prints its successor; both are valid for a day
slipway keys revoke team-a k7Qm2xPw             # refused by all gateways within two seconds
```
[Tenants](tenants.md) explains them.

## Capacity and cost
```
slipway bench chat --save report.json           # how many requests in progress hold spec.slo; needs SLIPWAY_URL
slipway size --from report.json --rate 120 --price-hour 2.5     # pods, accelerators and cost for a rate
slipway size --model chat --rate 40 --prompt-tokens 800 --output-tokens 200    # from the status, without a load
slipway cost -A --window 7d                     # by revision, by million tokens, by 1,000 requests
slipway plan models.yaml                        # many models on shared GPUs
```
[Sizing](sizing.md) explains them.

## The audit log
```
slipway audit verify audit.log                  # no line was changed, removed or put in between
slipway audit verify audit.log --has 4be1c0…    # nor cut off: this line, which is known from elsewhere, is there
```
[The audit log](audit.md) explains it.
"""

_RIGHTS = """
## Rights
To read: `get` and `list` of `modeldeployments`, and `list` of `pods`, `events` (without these `status` names what it
omits) and `controllerrevisions` (for `history` and `undo`); `analyze` and
the analyses of `status` also need `get` of `analysisruns`, `analyze` of `analysistemplates` too. To
change a rollout: `patch` of `modeldeployments`. Kubernetes' own roles `view` and `edit` include all of that after the
chart has added ModelDeployments to them. `status` reads the operator's Lease (`status.lease`); the chart lets
everybody `get` it. `explain` also needs `get` of `pods` and `create` of `pods/exec` in the operator's namespace.
For `tenants` and `keys list`: `get` and `list` of `tenants`; to change keys also `patch`, and to make them `get` of
the release's Secret with the pepper ([tenants.md](tenants.md#rights)). For `usage` and `cost`: `list` of `pods` and
`get` of `pods/proxy` in the release's namespace. `bench` needs `get` of the ModelDeployment, and the key of a Tenant.

## Without an operator
A status is as old as its last write. So `slipway status` reads the Lease: when no operator renews it, a line says
`no operator runs`, and no forecast is shown. There is no forecast either when the last requests were counted more than
five minutes ago. The command reads the pods from the API server each time.
"""


def reference() -> str:
    """The page as Markdown."""
    verbs = [cli.commands[name] for name in cli.list_commands(click.Context(cli))]
    parts = [_HEADER, *_exit_codes(), *_where(), "\n## Commands\n", *(line for verb in verbs for line in _verb(verb))]
    return "\n".join([*parts, *_recording(), _RIGHTS]).rstrip() + "\n"


def _exit_codes() -> Iterator[str]:
    yield "## Exit codes\n| code | meaning |\n|---|---|"
    yield "| 0 | done; `wait`: the state is reached |"
    yield f"| {errors.FAILED} | an error, or nothing to do; stderr has one sentence |"
    yield f"| {click.UsageError.exit_code} | invalid command line |"
    yield f"| {errors.TIMED_OUT} | `wait`: timeout |"
    yield f"| {errors.REJECTED} | `wait`: the revision or the spec was rejected; waiting longer does not help |"
    yield f"| {errors.INTERRUPTED} | interrupted, as `status --watch` always is; `bench` prints what it has |\n"


def _where() -> Iterator[str]:
    yield "## Options of every command that uses a cluster\nThey may precede or follow the command.\n"
    yield from _options([option for option in cli.params if option.name in WHERE])


def _verb(verb: click.Command, group: str = "") -> Iterator[str]:
    if isinstance(verb, click.Group):
        for name in verb.list_commands(click.Context(verb)):
            yield from _verb(verb.commands[name], f"{verb.name} ")
        return
    arguments = (_argument(item) for item in verb.params if isinstance(item, click.Argument))
    words = [f"slipway {group}{verb.name}", *arguments]
    yield f"### `{' '.join(words)}`\n"
    yield "\n\n".join(" ".join(part.split()) for part in (verb.help or "").split("\n\n")) + "\n"
    own = [item for item in verb.params if isinstance(item, click.Option) and item.name not in WHERE]
    if own:
        yield from _options(own)
        yield ""


def _argument(argument: click.Argument) -> str:
    name = (argument.metavar or (argument.name or "").upper()).strip("[]")
    name = "|".join(argument.type.choices) if isinstance(argument.type, click.Choice) else name
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _options(options: list[click.Parameter]) -> Iterator[str]:
    yield "| option | what |\n|---|---|"
    for option in options:
        assert isinstance(option, click.Option), "arguments are in the title"
        value = "" if option.is_flag else f" {_value(option)}"
        names = ", ".join(f"`{name}{value}`" for name in option.opts)
        required = "**Required.** " if option.required else ""
        yield f"| {names} | {required}{' '.join((option.help or '').split())} |"


def _value(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(option.type.choices).replace("|", "\\|")
    return option.metavar or option.type.name.upper()


def _recording() -> Iterator[str]:
    """A rollout as `status --watch` showed it on a real cluster, if there is a recording."""
    if RECORDING.exists():
        yield "## A rollout, recorded\n`slipway status chat --watch` on a real cluster:"
        yield f"```\n{RECORDING.read_text().rstrip()}\n```"
