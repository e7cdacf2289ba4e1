"""`python -m slipway_gateway.generations.erase --tenant NAME [--request-id ID]`: deletes rows of the generation log."""

import sys

from slipway_process import logs
from slipway_process.database_errors import UNAVAILABLE
from slipway_process.sealing import Keyring

from .settings import EraseSettings, opened


def main() -> None:
    settings = EraseSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    try:
        table = opened(settings.generation_log_url, Keyring.none())
        try:
            count = table.erase(settings.tenant, settings.request_id)
        finally:
            table.close()
    except (ValueError, *UNAVAILABLE) as error:
        sys.exit(f"slipway_gateway.generations.erase: {error}")
    sys.stdout.write(f"{count} rows deleted\n")


if __name__ == "__main__":
    main()
