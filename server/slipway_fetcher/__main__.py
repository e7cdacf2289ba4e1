"""The composition root of slipway-fetcher: settings, one fetch, and the report or the sentence that it leaves."""

import logging
import sys
from contextlib import AbstractContextManager, nullcontext

from slipway_process import logs
from slipway_process.model_folder.checkpoint import CheckpointError
from slipway_process.termination import DATA_ERROR, NO_INPUT, last_words, leave

from . import folder, guard
from .cache.locks import CacheError
from .cached import CacheUse
from .downloads import FETCH
from .fetching import Sources, fetch
from .folder import FetchError, Formats, TooLargeError, UnusableError
from .guard import EgressRules
from .hub import Hub
from .oci.registry import RegistryAccess
from .settings import FetcherSettings

log = logging.getLogger("slipway.fetcher")


def main() -> None:
    settings = FetcherSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    shown, taken = guard.shown(settings.uri), 0
    try:
        taken = folder.bytes_beside(settings.max_bytes_of, settings.dest) if settings.max_bytes_of else 0
        rules = EgressRules.of(settings.allow_host, [*settings.allow_network, *settings.allow_networks])
        formats = _formats(settings)
        hub = Hub(settings.hub_endpoint, settings.hub_token.get_secret_value())
        registry = RegistryAccess(settings.registry_config.get_secret_value())
        tracking = settings.tracking_access()
        sources = Sources(rules, hub, settings.store_access(), registry, tracking, formats=formats)
        use = CacheUse(settings.cache_dir, settings.cache_scope, settings.cache_pod) if settings.cache_dir else None
        with _progress_served(settings.progress_port):
            report = fetch(
                settings.uri, settings.revision, settings.dest,
                max_bytes=max(0, settings.max_bytes - taken), pin_file=settings.pin_file, sources=sources, use=use,
            )  # fmt: skip
        leave(report.text())
    except TooLargeError as error:
        beside = f" {taken} of {settings.max_bytes} bytes are taken by what is beside it." if taken else ""
        last_words(f"{error}{beside}")
        sys.exit(DATA_ERROR)
    except (UnusableError, CheckpointError) as error:
        last_words(str(error))
        sys.exit(DATA_ERROR)
    except (FetchError, CacheError) as error:
        last_words(str(error))
        sys.exit(NO_INPUT)
    except Exception as error:
        log.debug("failed", exc_info=True)
        last_words(f"{shown} cannot be fetched: {type(error).__name__}: {error}")
        sys.exit(NO_INPUT)


def _formats(settings: FetcherSettings) -> Formats:
    if settings.format == folder.PEFT_FORMAT:
        return folder.PEFT
    if settings.format:
        return folder.classic(settings.format)
    return folder.ANY_ENGINE if settings.any_engine else folder.SLIPWAY


def _progress_served(port: int) -> AbstractContextManager[int]:
    if not port:
        return nullcontext(0)
    from . import download_page

    return download_page.served(port, FETCH.state)


if __name__ == "__main__":
    main()
