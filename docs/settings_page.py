"""docs/settings.md: flags and variables of each process, from the fields of its settings class."""

from collections.abc import Iterator

from slipway_console.settings import ConsoleSettings
from slipway_fetcher.adapters import AdapterLoaderSettings
from slipway_fetcher.pool import PoolFetcherSettings
from slipway_fetcher.settings import FetcherSettings
from slipway_gateway.settings import GatewaySettings
from slipway_jobs.settings import JobsSettings
from slipway_operator.settings import OperatorSettings
from slipway_predict.settings import PredictSettings
from slipway_process.settings import ProcessSettings, flag_name, shown_default, value_name, variables
from slipway_server.settings import ServerSettings

PROCESSES: tuple[type[ProcessSettings], ...] = (
    OperatorSettings,
    GatewaySettings,
    JobsSettings,
    ServerSettings,
    PredictSettings,
    FetcherSettings,
    PoolFetcherSettings,
    AdapterLoaderSettings,
    ConsoleSettings,
)

_HEADER = """\
# Settings

Generated from the settings classes of the processes by `make generate`; do not edit. `slipway-operator run --help`,
`slipway-gateway --help`, `slipway-jobs --help`, `slipway-server --help`, `slipway-predict --help`,
`slipway-fetcher --help` and `slipway-console --help` show the same.

A flag takes precedence over its variable, and the last of equal flags counts. With invalid values a process exits
with 2 and one sentence on stderr that names all of them, each with its flag or variable. Operator, gateway, jobs,
fetcher and console take an empty variable as absent; the servers take it as an empty value. `slipway-server` with
`--task predict`, `classify` or `rerank` becomes `slipway-predict`, whose settings are its own.

Server and fetcher also read `SLIPWAY_TERMINATION_LOG`, the file for the sentence with which they fail (default
`/dev/termination-log`). The engine uses as many threads as the container has cores, by affinity and cgroup quota;
`OMP_NUM_THREADS` overrides that. `SLIPWAY_CUDA_STUBS=off` has the engine load CUDA's own libraries
[without a GPU](server.md#the-engine) too. [The command line](cli.md) has its own page.

## Logs
All processes write one JSON object per line on stderr: `ts` (UTC), `level`, `logger`, `msg`, for an exception `exc`,
and fields of the message. Lines about a request have `request_id` (its `X-Request-Id`), in the gateway also `revision`
once one is selected; lines of a server have its `model_version`. Lines inside a reconcile have `key`, `generation`
and `revision`. Warnings of Python, uncaught exceptions and the logs of libraries have the same form. All
characters but printable ASCII are escaped, so that no request and no object can begin a line of its own.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_HEADER, *(line for settings in PROCESSES for line in _process(settings))]).rstrip() + "\n"


def _process(settings: type[ProcessSettings]) -> Iterator[str]:
    yield f"## {settings.model_config['cli_prog_name']}\n"
    yield "| flag | variable | default | meaning |\n|---|---|---|---|"
    for name, field in settings.model_fields.items():
        flag = _flag(settings, name)
        variable = " ".join(f"`{one}`" for one in variables(settings, name))
        default = "required" if field.is_required() else _code(shown_default(field))
        meaning = _cell(str(field.description))
        yield f"| {flag} | {variable} | {default} | {meaning} |"
    yield ""


def _flag(settings: type[ProcessSettings], name: str) -> str:
    flag, value = flag_name(settings, name), value_name(settings.model_fields[name]).replace("|", "\\|")
    return _code(f"{flag} {value}") if flag else ""


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
