"""How the pod tells what it does: logs, metrics, heartbeat, and its last words."""
