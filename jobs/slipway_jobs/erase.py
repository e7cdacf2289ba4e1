"""`python -m slipway_jobs.erase --tenant NAME`: deletes all conversations and stored responses of a tenant."""

import asyncio
import sys
from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from slipway_process import logs
from slipway_process.database_errors import UNAVAILABLE
from slipway_process.sealing import Keyring
from slipway_process.settings import ProcessSettings
from slipway_process.values import Flag, Name

from .store.conversation_store import ConversationStore
from .store.conversation_usage import ConversationLimits
from .store.database import Database


class EraseSettings(ProcessSettings):
    """Deletes all conversations and stored responses of a tenant; jobs processes may run meanwhile."""

    model_config = SettingsConfigDict(
        cli_prog_name="python -m slipway_jobs.erase", env_prefix="SLIPWAY_JOBS_", env_ignore_empty=True
    )

    tenant: Name = Field(description="name of the Tenant; an empty one: of clients without authentication")
    database_url: Annotated[SecretStr, Flag("URL")] = Field(description="as of slipway-jobs")


def main() -> None:
    settings = EraseSettings.parse(sys.argv[1:])
    logs.configure(settings.log_level)
    try:
        database = Database(settings.database_url.get_secret_value(), erases=True)
    except ValueError as error:
        sys.exit(f"slipway_jobs.erase: --database-url: {error}")
    try:
        count = asyncio.run(erase(database, settings.tenant))
    except UNAVAILABLE as error:
        sys.exit(f"slipway_jobs.erase: the database cannot be used: {error}")
    finally:
        database.close()
    sys.stdout.write(f"{count} conversations deleted\n")


async def erase(database: Database, tenant: str) -> int:
    """Returns how many conversations and chains were deleted. Raises the errors in `UNAVAILABLE`."""
    limits = ConversationLimits(0, 0, 0, 0, 0)  # nothing is added
    store, count = ConversationStore(database, limits, Keyring(""), keep_s=0.0, idle_s=0.0), 0
    while deleted := await database.call(store.erase, tenant):
        count += deleted
    return count


if __name__ == "__main__":
    main()
