"""Any other engine with OpenAI's API: the user writes its command, and `spec.engine.custom` how it is checked."""

from slipway_operator.manifests.engines.profile import (
    GRACE_MARGIN_S,
    HTTP_PORT,
    WRITABLE_HOME,
    EngineProfile,
    Probe,
    model_path,
    startup,
)
from slipway_operator.model.cluster.observed import Snapshot
from slipway_operator.model.engine_types import custom_of


def profile(snapshot: Snapshot) -> EngineProfile:
    """Return the profile for a revision."""
    engine = snapshot.inputs.engine
    custom = custom_of(engine)
    return EngineProfile(
        command=engine.command,
        args=(),
        worker_command=custom.worker_command or engine.command,
        worker_args=() if custom.worker_command else engine.args,
        startup=startup(custom.readiness_path, 2, timeout_s=5),
        readiness=Probe(custom.readiness_path, 5, 2, timeout_s=5),
        liveness=Probe(custom.liveness_path, 10, 6, timeout_s=5),
        grace_s=custom.pre_stop_seconds + snapshot.drain_timeout_s + GRACE_MARGIN_S,
        pre_stop_s=custom.pre_stop_seconds,
        env=WRITABLE_HOME,
        # Kubernetes replaces $(NAME) in command and arguments by these.
        owned_env=(
            ("SLIPWAY_MODEL_PATH", model_path(snapshot)),
            ("SLIPWAY_MODEL_NAME", snapshot.inputs.model.name),
            ("SLIPWAY_PORT", str(HTTP_PORT)),
        ),
        user_id=custom.run_as_user,
        read_only_root=False,
    )
