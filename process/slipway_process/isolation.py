"""What the process of a model may not do: read other files, open sockets, start programs, look into other processes.

Landlock bounds files, seccomp system calls, rlimits memory: none of them needs a privilege. They are set after the
runtime is imported and before the first byte of the model is read, and nothing takes them back.
"""

import contextlib
import ctypes
import ctypes.util
import errno
import logging
import os
import platform
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger("slipway.predict")

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # of every architecture
_RULE_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
_ALL_OF_ABI_1 = (1 << 13) - 1  # every access to files of Landlock's first version

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
_NOT_THERE = 0x00050000 | errno.ENOSYS
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
CLONE_THREAD = 0x10000
# By machine: the number of the architecture, of clone, clone3, tgkill, prlimit64, and of the calls that are refused.
_CALLS: dict[str, tuple[int, int, int, int, int, tuple[int, ...]]] = {
    # socket connect bind listen accept accept4 ptrace process_vm_readv writev pidfd_open pidfd_getfd execve execveat
    # kill tkill fork vfork io_uring(3) bpf perf_event_open keyctl add_key request_key mount unshare setns socketpair
    # rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal
    "x86_64": (
        0xC000003E, 56, 435, 234, 302,
        (41, 42, 49, 50, 43, 288, 101, 310, 311, 434, 438, 59, 322, 62, 200, 57, 58, 425, 426, 427, 321, 298, 250, 248,
         249, 165, 272, 308, 53, 129, 297, 424),
    ),
    "aarch64": (
        0xC00000B7, 220, 435, 131, 261,
        (198, 203, 200, 201, 202, 242, 117, 270, 271, 434, 438, 221, 281, 129, 130, 425, 426, 427, 280, 241, 219, 217,
         218, 40, 97, 268, 199, 138, 240, 424),
    ),
}  # fmt: skip
_READ_ONLY = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/proc/self", "/proc/cpuinfo",
              "/proc/meminfo", "/proc/sys/vm/overcommit_memory", "/sys/devices/system", "/dev/null", "/dev/urandom",
              "/sys/fs/cgroup")  # fmt: skip


class IsolationError(OSError):
    """The kernel refuses to isolate the process."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def hide_memory() -> None:
    """For a process that has secrets: other processes of its user cannot read its memory and environment."""
    _libc().prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def isolate(model: Path) -> bool:
    """Isolate this process and its later threads. Returns whether files are bounded too (Linux 5.13 with Landlock).

    Raises:
        IsolationError: system calls cannot be bounded; the process must not load a model then.
    """
    if _libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise IsolationError(ctypes.get_errno(), "no_new_privs is refused")
    with contextlib.suppress(OSError):  # the OOM killer takes this process before the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bounded = _bound_files([str(model), *_python_paths(), *_READ_ONLY])
    _bound_calls()
    return bounded


def limit_memory(size_bytes: int) -> None:
    """Limit what this process allocates; 0: no limit. More is a failed allocation, and not the end of the container.

    What a runtime has mapped and not touched is no memory: of torch that is half a gigabyte.
    """
    if size_bytes:
        most = size_bytes + _untouched_bytes()
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _untouched_bytes() -> int:
    sizes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmData", "RssAnon"):
            sizes[name] = int(value.split()[0]) * 1024
    return max(0, sizes.get("VmData", 0) - sizes.get("RssAnon", 0))


def _python_paths() -> list[str]:
    paths = [*sys.path, sys.prefix, sys.base_prefix, sys.base_exec_prefix]
    return [path for path in paths if os.path.isabs(path) and os.path.realpath(path) not in ("/", "/usr", "/tmp")]


def _bound_files(readable: Iterable[str]) -> bool:
    libc = _libc()
    attributes = struct.pack("=Q", _ALL_OF_ABI_1)
    rules = libc.syscall(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for path in dict.fromkeys(readable):
            _allow_reading(libc, rules, path)
        if libc.syscall(_LANDLOCK_RESTRICT, rules, 0):
            raise IsolationError(ctypes.get_errno(), "Landlock is refused")
    finally:
        os.close(rules)
    return True


def _allow_reading(libc: ctypes.CDLL, rules: int, path: str) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # this machine does not have it
    try:
        access = _READ_FILE | (_READ_DIR | _EXECUTE if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", access, descriptor)
        if libc.syscall(_LANDLOCK_ADD, rules, _RULE_PATH_BENEATH, rule, 0):
            raise IsolationError(ctypes.get_errno(), f"Landlock refuses a rule for {path}")
    finally:
        os.close(descriptor)


def _bound_calls() -> None:
    machine = platform.machine()
    if machine not in _CALLS:
        raise IsolationError(errno.ENOSYS, f"there is no list of system calls for {machine}")
    program = _program(os.getpid(), *_CALLS[machine])
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("=H6xQ", len(program), ctypes.addressof(code))
    if _libc().prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0):
        raise IsolationError(ctypes.get_errno(), "seccomp is refused")


def _program(
    pid: int, architecture: int, clone: int, clone3: int, tgkill: int, prlimit: int, refused: tuple[int, ...]
) -> list[bytes]:
    """The seccomp filter. Threads, signals to itself and its own limits are allowed; other processes and programs are
    not."""
    step = struct.Struct("=HBBI").pack
    allow, deny = step(_RETURN, 0, 0, _ALLOW), step(_RETURN, 0, 0, _DENY)
    lines = [step(_LOAD, 0, 0, _ARCHITECTURE), step(_JUMP_IF_EQUAL, 1, 0, architecture), deny]
    lines += [step(_LOAD, 0, 0, _NUMBER)]
    lines += [step(_JUMP_IF_SET, 0, 1, 0x40000000), deny]  # system calls of x32
    # glibc takes clone where there is no clone3, whose flags a filter cannot see.
    lines += [step(_JUMP_IF_EQUAL, 0, 1, clone3), step(_RETURN, 0, 0, _NOT_THERE)]
    lines += [step(_JUMP_IF_EQUAL, 0, 4, clone), step(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [step(_JUMP_IF_SET, 0, 1, CLONE_THREAD), allow, deny]
    lines += [step(_JUMP_IF_EQUAL, 0, 4, tgkill), step(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [step(_JUMP_IF_EQUAL, 0, 1, pid), allow, deny]
    lines += [step(_JUMP_IF_EQUAL, 0, 5, prlimit), step(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [step(_JUMP_IF_EQUAL, 1, 0, 0), step(_JUMP_IF_EQUAL, 0, 1, pid), allow, deny]
    for number in refused:
        lines += [step(_JUMP_IF_EQUAL, 0, 1, number), deny]
    return [*lines, allow]
