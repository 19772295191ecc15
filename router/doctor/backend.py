"""Whether llama.cpp loads on this machine, and what its build can do.

Owns asking it, in a process of its own, and what its failures mean. Whether it sees the GPUs that are there is
`gpus.py`'s question.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.doctor.findings import Finding, fail, ok, warn

_ASK_S: Final = 30.0
_MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+?)(?:\.so[\w.]*|\.dylib): cannot open shared object file")
_SIGILL: Final = -4
_SIGSEGV: Final = -11

LIBRARY_VARIABLE: Final = "LLAMA_CPP_LIB_PATH"

REBUILD: Final = "pip install --force-reinstall --no-cache-dir --no-deps 'llama-cpp-python>=0.3.36,<0.4'"
"""Compiles it anew, whatever is installed or cached."""


@dataclass(frozen=True, slots=True)
class Build:
    """What the library tells of itself."""

    version: str
    library_folder: str
    backends: tuple[str, ...]
    supports_gpu: bool
    features: tuple[str, ...]
    devices: tuple[Mapping[str, Any], ...] = ()
    """As the probe tells them."""

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The devices that are not the processor."""
        return [device for device in self.devices if device.get("kind") in ("gpu", "integrated")]


def rebuild(cmake_args: str = "") -> str:
    """Return the command that compiles llama-cpp-python with these options."""
    options = f'CMAKE_ARGS="{cmake_args}" ' if cmake_args else ""
    return f"$ {options}{sys.executable} -m {REBUILD}"


def ask_llama(environ: Mapping[str, str]) -> Build | Finding:
    """Return the build, or why llama.cpp does not work. Takes some tenths of a second; a GPU's first look, seconds."""
    try:
        from router.launch import worker_environment
    except ImportError as error:
        return fail(f"Corral's own modules cannot be imported: {error}", f"$ {sys.executable} -m pip install .")
    questions = ({"ask": "build"}, {"ask": "devices"})
    answers: list[dict[str, Any]] = []
    for question in questions:
        answer = _ask(question, worker_environment(environ, {}))
        if isinstance(answer, Finding):
            return answer
        answers.append(answer)
    build, devices = answers
    try:
        return Build(
            str(build["version"]),
            str(build["library_folder"]),
            tuple(map(str, build["backends"])),
            bool(build["supports_gpu"]),
            tuple(map(str, build["features"])),
            tuple(devices["devices"]),
        )
    except (KeyError, TypeError):
        return fail("llama.cpp's answer was not understood: Corral's files are of different releases")


def _ask(question: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Any] | Finding:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "worker.probe"],
            input=json.dumps(question).encode() + b"\n",
            capture_output=True,
            timeout=_ASK_S,
            check=False,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired:
        return fail(
            f"llama.cpp did not answer within {_ASK_S:.0f} s",
            "a GPU's driver may hang: look at the kernel's log (`dmesg`)",
            "with CUDA_VISIBLE_DEVICES=-1 in the environment it can be tried without NVIDIA cards",
        )
    except OSError as error:
        return fail(f"{sys.executable} cannot be started: {error.strerror}")
    said = done.stderr.decode("utf-8", "replace")
    lines = done.stdout.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if isinstance(answer, dict) and "error" not in answer:
        return answer
    reason = str(answer["error"]) if isinstance(answer, dict) else said
    found = explain_failure(reason, done.returncode)
    if folder := environ.get(LIBRARY_VARIABLE):
        step = f"{LIBRARY_VARIABLE}={folder} names the folder of another build: correct it, or take it away"
        return Finding(found.level, found.text, (step, *found.advice))
    return found


def explain_failure(said: str, status: int) -> Finding:
    """Return what it means that the probe has failed; `said` is what it printed."""
    words = [line.strip() for line in said.splitlines() if line.strip()]
    last = words[-1] if words else "it said nothing"
    library = _MISSING_LIBRARY.search(said)
    if library is not None:
        return fail(f"llama.cpp cannot be loaded: {library[1]} is not found", *_about_library(library[1]))
    if "No module named 'llama_cpp'" in said:
        return fail("llama-cpp-python is not installed", f"$ {sys.executable} -m pip install .")
    if status == _SIGILL:
        return fail(
            "llama.cpp was built for another processor: it uses an instruction that this one does not have",
            "build it on this machine:",
            rebuild(),
        )
    if status < 0:
        return fail(f"llama.cpp's process was killed by signal {-status}: {last}", "build it anew:", rebuild())
    return fail(f"llama.cpp cannot be loaded: {last}", "build it anew:", rebuild())


def _about_library(name: str) -> tuple[str, ...]:
    if name.startswith("libgomp"):
        return ("$ apt install libgomp1", "(elsewhere: the package with GCC's OpenMP library)")
    if name.startswith(("libcudart", "libcublas", "libcuda", "libnccl")):
        return (
            "the CUDA runtime is not where the loader looks: put its folder into LD_LIBRARY_PATH, for example",
            "$ export LD_LIBRARY_PATH=/usr/local/cuda/lib64",
            "or build for the CPU:",
            rebuild("-DGGML_CUDA=off"),
        )
    if name.startswith(("libhip", "libroc", "libamdhip", "librocblas")):
        return (
            "the ROCm runtime is not where the loader looks: put its folder into LD_LIBRARY_PATH, for example",
            "$ export LD_LIBRARY_PATH=/opt/rocm/lib",
        )
    if name.startswith("libvulkan"):
        return ("$ apt install libvulkan1",)
    return ("install what brings this library, or build llama.cpp anew on this machine:", rebuild())


def check_build(build: Build, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[Finding]:
    """Return what there is to say of the build."""
    where = ", ".join(build.backends) or "none"
    findings = [ok(f"llama-cpp-python {build.version} loads; its backends: {where}")]
    on = {feature.partition("=")[0].strip() for feature in build.features if feature.endswith("= 1")}
    try:
        flags = set(re.findall(r"\w+", cpuinfo.read_text(encoding="ascii", errors="replace").partition("\n\n")[0]))
    except OSError:  # not Linux
        flags = set()
    unused = [name for flag, name in (("avx2", "AVX2"), ("fma", "FMA"), ("f16c", "F16C")) if flag in flags - on]
    unused = [name for name in unused if name not in on]
    if "avx512f" in flags and "AVX512" not in on and not unused:
        findings.append(ok("the processor has AVX512, which this build does not use; AVX2 does nearly as well"))
    if unused:
        findings.append(
            warn(
                f"the processor has {', '.join(unused)}, which this build does not use: answers are several times "
                "slower than they could be",
                "build it on this machine:",
                rebuild("-DGGML_NATIVE=on"),
            )
        )
    elif on:
        wide = [name for name in ("AVX512", "AVX2", "AVX", "NEON", "SVE", "AMX_INT8") if name in on]
        findings.append(ok(f"processor features in use: {', '.join(wide) or ', '.join(sorted(on))}"))
    return findings
