"""The composition root of slipway-predict: settings, and the server of one classic model or of a pool."""

import asyncio
import sys

from slipway_process.model_folder import classic
from slipway_process.serving import program

from .http import app
from .http.pool import app as pool_app
from .settings import PredictSettings


def main() -> None:
    settings = PredictSettings.parse(sys.argv[1:])
    program.run(settings, lambda: serve(settings))


def serve(settings: PredictSettings) -> None:
    if settings.pool_config:
        asyncio.run(pool_app.serve(settings))
    else:
        asyncio.run(app.serve(settings, classic.find(settings.model, settings.format, settings.task)))


if __name__ == "__main__":
    main()
