"""The composition root: settings, and the server of the model's kind. Only that kind's code is imported."""

import asyncio
import sys

from slipway_process import logs
from slipway_process.network.mutual_tls import UnusableCertificate

from .engine.client import EngineError, ModelRefused
from .installed import absent, needs_torch
from .models.checkpoint import CheckpointError
from .settings import ServerSettings, parse
from .telemetry.termination import DATA_ERROR, FAILED, last_words

CLASSIC = ("predict", "classify", "rerank")


def main() -> None:
    settings = parse(sys.argv[1:])
    logs.configure(settings.log_level, model_version=settings.model_version)
    try:
        if settings.task in CLASSIC:
            predict(settings)
        else:
            language(settings)
    except (CheckpointError, ModelRefused) as error:
        last_words(str(error))
        sys.exit(DATA_ERROR)
    except EngineError as error:
        last_words(str(error))
        sys.exit(FAILED)
    except (OSError, UnusableCertificate) as error:
        last_words(f"The server cannot start: {error}.")
        sys.exit(FAILED)


def predict(settings: ServerSettings) -> None:
    """Serves a classic model, or a pool of them."""
    from .http.pool.app import serve as serve_pool
    from .http.predict.app import serve as serve_model
    from .predict import model_file

    if settings.pool_config:
        asyncio.run(serve_pool(settings))
        return
    asyncio.run(serve_model(settings, model_file.find(settings.model, settings.format, settings.task)))


def language(settings: ServerSettings) -> None:
    """Serves a language model.

    Raises:
        CheckpointError: torch or a package beside it is not installed.
    """
    if missing := absent():
        reason = f"without {', '.join(missing)}"
        raise CheckpointError(needs_torch(f"--task {settings.task}", "server", reason))
    from .language import serve_language

    serve_language(settings)


if __name__ == "__main__":
    main()
