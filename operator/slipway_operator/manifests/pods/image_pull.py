"""A container whose only purpose is that the kubelet pulls an image, whatever the image has: it may have no program.

The container runs a program that a container before it has written: 130 bytes for Linux that end with status 0.
"""

from typing import Any

NAME = "image"
_WRITER, _VOLUME, _DIR = "program", "program", "/mnt/program"
_PULL = {"cpu": "10m", "memory": "64Mi", "ephemeral-storage": "16Mi"}
_WRITE = {**_PULL, "cpu": "100m"}
# An ELF file: a header, one segment, and the system call exit(0), by x86-64's and AArch64's numbers and registers.
WRITE_PROGRAM = """
import os, platform, struct, sys
machine, code = {
    "x86_64": (62, "31ff" "b83c000000" "0f05"),
    "aarch64": (183, "000080d2" "a80b80d2" "010000d4"),
}[platform.machine()]
code, start, headers = bytes.fromhex(code), 0x400000, 64 + 56
size = headers + len(code)
header = (b"\\x7fELF\\2\\1\\1", 2, machine, 1, start + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0)
segment = (1, 5, 0, start, start, size, size, 0x10000)
with open(sys.argv[1], "wb") as file:
    file.write(struct.pack("<16sHHIQQQIHHHHHH", *header) + struct.pack("<IIQQQQQQ", *segment) + code)
os.chmod(sys.argv[1], 0o755)
"""


def pulling(pod: dict[str, Any], container: dict[str, Any], writer: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod that also pulls the image of `container`; nothing of the image runs.

    `writer`: a container whose image has python3; image and securityContext of it are used.
    """
    program = f"{_DIR}/end"
    written = {
        "name": _WRITER,
        **_of(writer),
        "command": ["python3", "-c", WRITE_PROGRAM, program],
        "resources": {"requests": _WRITE, "limits": _WRITE},
        "volumeMounts": [{"name": _VOLUME, "mountPath": _DIR}],
    }
    pulled = {
        "name": NAME,
        **_of(container),
        "command": [program],
        "resources": {"requests": _PULL, "limits": _PULL},
        "volumeMounts": [{"name": _VOLUME, "mountPath": _DIR, "readOnly": True}],
    }
    return {
        **pod,
        "initContainers": [*pod.get("initContainers", ()), written],
        "containers": [*pod["containers"], pulled],
        "volumes": [*pod["volumes"], {"name": _VOLUME, "emptyDir": {"sizeLimit": "1Mi"}}],
    }


def _of(container: dict[str, Any]) -> dict[str, Any]:
    return {name: container[name] for name in ("image", "imagePullPolicy", "securityContext") if name in container}
