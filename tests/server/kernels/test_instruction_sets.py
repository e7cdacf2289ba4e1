"""Which kernels a CPU gets, and those of all instruction sets of this CPU against torch."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipway_server import environment
from slipway_server.kernels.c import library
from slipway_server.kernels.c.build import FLAGS, INSTRUCTION_SETS, InstructionSet
from slipway_server.kernels.c.library import KernelsUnavailable, cpu_flags, instruction_set, load, usable_flags

ROOT = Path(__file__).parents[3]
HASWELL = "avx avx2 fma f16c bmi1 bmi2"
SKYLAKE = f"{HASWELL} avx512f avx512bw avx512vl avx512dq avx512cd"
SAPPHIRE_RAPIDS = f"GenuineIntel {SKYLAKE} avx_vnni avx512_vnni avx512_bf16 avx512_fp16"
CPUS = {
    "x86_64": {
        "Haswell, Zen 1 to 3": (HASWELL, "avx2"),
        "Alder Lake, Sierra Forest": (f"{HASWELL} avx_vnni", "avx_vnni"),
        "Skylake-SP": (SKYLAKE, "avx512"),
        "Cascade Lake, Ice Lake": (f"{SKYLAKE} avx512_vnni", "avx512_vnni"),
        "Zen 4": (f"AuthenticAMD {SKYLAKE} avx512_vnni avx512_bf16", "avx512_bf16"),
        "Cooper Lake": (f"GenuineIntel {SKYLAKE} avx512_vnni avx512_bf16", "avx512_bf16"),
        "Sapphire Rapids": (f"{SAPPHIRE_RAPIDS} amx_tile amx_bf16 amx_int8", "amx"),
        "the same in a process without tiles": (f"{SAPPHIRE_RAPIDS} amx_bf16 amx_int8", "avx512_vnni"),
        "the same where a hypervisor hides AMX": (SAPPHIRE_RAPIDS, "avx512_vnni"),
        "Intel's flags by another vendor": (SAPPHIRE_RAPIDS.replace("GenuineIntel", "AuthenticAMD"), "avx512_bf16"),
    },
    "aarch64": {"Graviton2": ("fp asimd atomics asimdhp asimdrdm asimddp", "neon")},
}


@pytest.mark.parametrize("machine", CPUS)
def test_a_cpu_gets_the_best_kernels_that_it_runs(machine: str) -> None:
    for cpu, (flags, expected) in CPUS[machine].items():
        found = instruction_set("auto", machine, set(flags.split()))
        assert (cpu, found.name) == (cpu, expected)


@pytest.mark.parametrize(
    ("chosen", "machine", "flags", "message"),
    [
        ("auto", "x86_64", "sse4_2 avx", "this CPU lacks avx2, bmi2, fma"),
        ("auto", "aarch64", "fp asimd", "this CPU lacks asimddp"),
        ("auto", "riscv64", "", "for x86-64 and aarch64, not for riscv64"),
        ("avx512", "x86_64", HASWELL, "SLIPWAY_KERNELS is avx512, and this CPU lacks avx512bw"),
        ("neon", "x86_64", HASWELL, "SLIPWAY_KERNELS is neon, which is not of x86_64"),
    ],
)
def test_why_a_cpu_gets_none(chosen: str, machine: str, flags: str, message: str) -> None:
    with pytest.raises(KernelsUnavailable, match=message):
        instruction_set(chosen, machine, set(flags.split()))


def test_a_named_set_masks_better_ones() -> None:
    assert instruction_set("avx2", "x86_64", set(SKYLAKE.split())).name == "avx2"
    assert instruction_set("avx512_bf16", "x86_64", set(SAPPHIRE_RAPIDS.split())).name == "avx512_bf16", (
        "slow, but named"
    )


def test_flags_are_read_on_both_machines(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text(
        "processor : 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu avx2\n\nprocessor : 1\nflags\t\t: fpu sse\n"
    )
    (tmp_path / "arm").write_text("processor : 0\nFeatures\t: fp asimd asimddp\n")
    assert cpu_flags(tmp_path / "x86") == {"GenuineIntel", "fpu", "avx2"}
    assert cpu_flags(tmp_path / "arm") == {"fp", "asimd", "asimddp"}
    assert cpu_flags(tmp_path / "none") == set()


@pytest.mark.parametrize(("permitted", "expected"), [(0, {"avx2", "amx_tile"}), (-1, {"avx2"})])
def test_tiles_are_used_where_the_kernel_permits_them(
    permitted: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, ...]] = []

    def syscall(*arguments: int) -> int:
        calls.append(arguments)
        return permitted

    libc = SimpleNamespace(syscall=syscall)
    monkeypatch.setattr(library, "cpu_flags", lambda: {"avx2", "amx_tile"})
    monkeypatch.setattr(library.ctypes, "CDLL", lambda *_, **__: libc)
    assert usable_flags() == expected
    assert calls == [(158, 0x1023, 18)], "arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)"


def test_a_cpu_without_tiles_needs_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_flags", lambda: {"avx2"})
    monkeypatch.setattr(library, "_amx_permitted", lambda: pytest.fail("the kernel was called"))
    assert usable_flags() == {"avx2"}


def test_a_library_of_another_machine_is_a_reason(tmp_path: Path) -> None:
    other = tmp_path / "libslipway-avx2.so"
    with pytest.raises(KernelsUnavailable, match="not built"):
        load(INSTRUCTION_SETS[0], 1, other)
    other.write_bytes(b"\x7fELF and nothing more")
    with pytest.raises(KernelsUnavailable, match="do not load"):
        load(INSTRUCTION_SETS[0], 1, other)


def of_this_cpu() -> list[InstructionSet]:
    flags = usable_flags()
    return [kind for kind in INSTRUCTION_SETS if kind.machine == platform.machine() and kind.needs <= flags]


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [kind.name for kind in of_this_cpu()])
def test_every_set_of_this_cpu_equals_torch(name: str) -> None:
    """The tests of the kernels, with the set in place of the best one."""
    _run("pytest", *KERNEL_TESTS, "-q", "-p", "no:randomly", "-rs", **{environment.KERNELS: name})


@pytest.mark.extended
@pytest.mark.timeout(900)
def test_avx_vnni_in_the_encoding_of_avx512_equals_torch() -> None:
    """Its source with 256 bits, where the CPU has the same instructions in AVX512's encoding only."""
    if not any(kind.name == "avx512_vnni" for kind in of_this_cpu()):
        pytest.skip("this CPU has no AVX512-VNNI")
    _run("tests.server.kernels.short_vectors")


@pytest.mark.extended
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("machine", "kind", "cpu"), [("aarch64", "neon", "neoverse-n1"), ("x86_64", "avx2", "Haswell")]
)
def test_kernels_run_on_an_emulated_cpu(machine: str, kind: str, cpu: str, tmp_path: Path) -> None:
    """Against sums in double: of aarch64, which is not here, and of a CPU that stops at any instruction of AVX512."""
    names = (f"qemu-{machine}-static", f"qemu-{machine}")
    emulator = next((found for name in names if (found := shutil.which(name))), None)
    if emulator is None:
        pytest.skip(f"there is no {names[0]}: install qemu-user-static")
    target = next(each for each in INSTRUCTION_SETS if each.name == kind)
    flags = ["-static", "-target", f"{machine}-linux-musl", f"-mcpu={target.zig_cpu}"]
    program = _check_program([sys.executable, "-m", "ziglang", "cc", *flags], tmp_path)
    done = subprocess.run([emulator, "-cpu", cpu, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [kind.name for kind in of_this_cpu()])
def test_kernels_that_the_machines_own_compiler_makes_equal_sums_in_double(name: str, tmp_path: Path) -> None:
    """As `build.py` does where there is no ziglang: other compilers understand other things by the same source."""
    own = shutil.which("cc")
    if own is None:
        pytest.skip("there is no cc")
    target = next(each for each in INSTRUCTION_SETS if each.name == name)
    program = _check_program([own, *target.cc_flags], tmp_path)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def _check_program(compiler: list[str], folder: Path) -> Path:
    """Of the kernels and what they are compared to."""
    program, source = folder / "check", str(Path(__file__).with_name("check.c"))
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    subprocess.run([*compiler, *flags, "-o", str(program), source, "-lm", "-lpthread"], check=True)
    return program


KERNEL_TESTS = tuple(f"tests/server/kernels/test_{name}.py" for name in ("native", "layers", "sampling"))


def _run(module: str, *arguments: str, **variables: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0 and "NOT RUN" not in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]
