"""Runs a server, and leaves the sentence with which one ends that cannot serve."""

import sys
from collections.abc import Callable

from slipway_process import logs
from slipway_process.model_folder.checkpoint import CheckpointError
from slipway_process.network.mutual_tls import UnusableCertificate
from slipway_process.serving.restarts import EngineError, ModelRefused
from slipway_process.serving.settings import ServingSettings
from slipway_process.termination import DATA_ERROR, FAILED, last_words


def run(settings: ServingSettings, serve: Callable[[], None]) -> None:
    """Serves until it ends.

    Raises:
        SystemExit: 65 where the model cannot be served, 1 where the server cannot start or go on.
    """
    logs.configure(settings.log_level, model_version=settings.model_version)
    try:
        serve()
    except (CheckpointError, ModelRefused) as error:
        last_words(str(error))
        sys.exit(DATA_ERROR)
    except EngineError as error:
        last_words(str(error))
        sys.exit(FAILED)
    except (OSError, UnusableCertificate) as error:
        last_words(f"The server cannot start: {error}.")
        sys.exit(FAILED)
