"""The command line: `python -m examples.demo`. Exit status 0 means that every bar held."""

import json
import sys
import time
from pathlib import Path

import click
import openai
from rich.console import Console

from examples.demo import report as reports
from examples.demo.screen import Screen, screen
from examples.demo.stage import NAME, NAMESPACE, StageError, Wish, clear, set_up
from examples.demo.story import Outcome, Story
from testkit import ROOT
from testkit.cluster.api import KubeError
from testkit.cluster.diagnosis import diagnosis
from testkit.cluster.kube import RELEASE, SYSTEM, Kube
from testkit.cluster.release import gateway, is_devcluster
from testkit.cluster.tools import tool
from testkit.report import Json, write
from testkit.until import WaitFailed

EXPECTED = (KubeError, WaitFailed, StageError)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True, dir_okay=False), envvar="KUBECONFIG",
              help="Another cluster than devcluster's; then name the images too.")  # fmt: skip
@click.option("--operator-image", envvar="SLIPWAY_OPERATOR_IMAGE", help="Operator and gateway. Default: built here.")
@click.option("--server-image", envvar="SLIPWAY_SERVER_IMAGE", help="Model server. Default: built here.")
@click.option("--keep/--no-keep", default=True, show_default=True, help="Leave the model and the release running.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the report to standard output, all else to standard error."
)
def main(
    kubeconfig: Path | None, operator_image: str | None, server_image: str | None, keep: bool, as_json: bool
) -> None:
    """Run Slipway's main job on a real cluster, under load, and print what was seen."""
    console = Console(stderr=as_json, soft_wrap=True)
    wish = Wish(kubeconfig, operator_image, server_image)
    try:
        report = perform(wish, console, keep)
    except KeyboardInterrupt:
        console.print("\ninterrupted; the next `make demo` cleans up after this one")
        sys.exit(130)
    if as_json and report:
        click.echo(json.dumps(report, indent=1))
    sys.exit(0 if report and all(bar["ok"] for bar in report["bars"]) else 1)


def perform(wish: Wish, console: Console, keep: bool) -> Json | None:
    """The whole demo; None when it did not get as far as a story."""
    began = time.monotonic()
    output = screen(console)
    try:
        output.act("stage: a cluster, the images, the release")
        stage = set_up(wish, output)
        with gateway(stage.kube) as url:
            outcome = _run_story(stage.kube, url, output)
    except EXPECTED as error:
        console.out(f"\ndemo failed: {error}", highlight=False)
        return None
    outcome.seconds = stage.seconds | outcome.seconds
    report = _conclude(outcome, time.monotonic() - began, console)
    if keep:
        console.out(_play_on(stage.kube, url), highlight=False)
    else:
        _leave(stage.kube)
    return report


def _run_story(kube: Kube, url: str, output: Screen) -> Outcome:
    """A story that fails still has an outcome: its bars show which end state was not reached."""
    story = Story(kube, url, output)
    try:
        with output:
            story.run()
    except (*EXPECTED, openai.OpenAIError, OSError) as error:
        output.line(f"failed: {error}\n{diagnosis(kube, NAME, NAMESPACE, with_logs=True)}")
    return story.outcome


def _conclude(outcome: Outcome, total_s: float, console: Console) -> Json:
    report = reports.as_json(outcome, total_s)
    path = write(report)
    console.out(f"\n== summary\n{reports.summary(outcome, total_s)}", highlight=False)
    console.out(f"report      {path.relative_to(ROOT)}", highlight=False)
    return report


def _play_on(kube: Kube, url: str) -> str:
    """Commands that work right now."""
    if is_devcluster(kube):
        base, away = url.removesuffix("/v1"), "make down                       # takes the cluster away"
        reach, path = (
            "",
            f"  export PATH={Path(tool('kubectl')).parent}:$PATH  # kubectl and helm, as devcluster has them\n",
        )
    else:
        base, away = "http://127.0.0.1:8080", f"helm uninstall {RELEASE} -n {SYSTEM}"
        path, reach = "", f"  kubectl -n {SYSTEM} port-forward svc/{RELEASE}-gateway 8080:80 &\n"
    message = '{"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "stream": true}'
    python = f"""from openai import OpenAI; client = OpenAI(base_url='{base}/v1', api_key='none')
print(client.completions.create(model='{NAME}', prompt='In the beginning', max_tokens=40).choices[0].text)"""
    return f"""
to play on:
{path}  export KUBECONFIG={kube.kubeconfig}
  kubectl get mdep -n {NAMESPACE} -o wide -w
  kubectl describe mdep {NAME} -n {NAMESPACE}
{reach}  curl -N {base}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{message}'
  python -c "{python}"
  {away}"""


def _leave(kube: Kube) -> None:
    """Nothing of the demo stays but the cluster."""
    clear(kube)
    kube.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=120)
    kube.helm("uninstall", RELEASE, "-n", SYSTEM, "--ignore-not-found", "--wait")


if __name__ == "__main__":
    main()
