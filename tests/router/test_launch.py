"""A worker is started with resolved options and with no more of the environment than it needs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.catalog import ModelSpec
from router.device import Device, DeviceKind, Placement
from router.events import WorkerId
from router.launch import (
    AUTO_CONTEXT,
    build_launch_spec,
    effective_context,
    hook_environment,
    worker_command,
    worker_environment,
)
from router.runtime_dir import MAX_SOCKET_PATH_BYTES, RuntimeDir, RuntimeDirError, default_parents
from worker.contract import LaunchSpec, default_max_leases


def model(**options: Any) -> ModelSpec:
    return ModelSpec(name="m", source="./m.gguf", base_dir=Path("/models"), **options)


def launch(spec: ModelSpec, *, trained: int | None = 4096, num_threads: int = 8) -> LaunchSpec:
    return build_launch_spec(
        spec,
        WorkerId("m", 0, 3),
        model_path=Path("/models/m.gguf"),
        socket_path=Path("/run/w1.sock"),
        trained_context=trained,
        num_threads=num_threads,
    )


@pytest.mark.parametrize(
    ("folder", "calibrate", "told"),
    [(Path("/cache/calibration"), True, "/cache/calibration"), (Path("/cache"), False, None), (None, True, None)],
)
def test_worker_is_told_where_to_keep_its_calibration_unless_it_shall_not(
    folder: Path | None, calibrate: bool, told: str | None
) -> None:
    spec = build_launch_spec(
        model(calibrate=calibrate),
        WorkerId("m", 0, 1),
        model_path=Path("/models/m.gguf"),
        socket_path=Path("/run/w1.sock"),
        trained_context=4096,
        num_threads=1,
        calibration_dir=folder,
    )
    assert LaunchSpec.from_line(spec.to_line()).calibration_dir == told


@pytest.mark.parametrize(("folder", "told"), [(Path("/cache/prompts"), "/cache/prompts"), (None, None)])
def test_worker_is_told_where_prompts_are_also_when_its_model_keeps_none_so_that_earlier_ones_go(
    folder: Path | None, told: str | None
) -> None:
    spec = build_launch_spec(
        model(),
        WorkerId("m", 0, 1),
        model_path=Path("/models/m.gguf"),
        socket_path=Path("/run/w1.sock"),
        trained_context=4096,
        num_threads=1,
        prompts_dir=folder,
    )
    received = LaunchSpec.from_line(spec.to_line())
    assert (received.prompts_dir, received.engine.prompt_cache_disk_bytes) == (told, 0)


@pytest.mark.parametrize("is_wanted", [False, True])
def test_worker_is_told_whether_to_check_its_cells(is_wanted: bool) -> None:
    spec = build_launch_spec(
        model(),
        WorkerId("m", 0, 1),
        model_path=Path("/models/m.gguf"),
        socket_path=Path("/run/w1.sock"),
        trained_context=4096,
        num_threads=1,
        check_cells=is_wanted,
    )
    assert LaunchSpec.from_line(spec.to_line()).check_cells is is_wanted


def test_every_option_of_the_model_reaches_the_worker() -> None:
    spec = model(
        context=1000,
        slots=3,
        kv_tokens=2000,
        engine={"gpu_layers": 0, "tensor_split": (1.0, 2.0), "cache_type_k": "q8_0"},
        max_tokens=77,
        chat_template="{{ x }}",
        chat_template_kwargs={"enable_thinking": False},
        allow_request_templates=True,
        drop_billing_header=False,
    )
    received = LaunchSpec.from_line(launch(spec).to_line())
    engine = received.engine
    assert (engine.context, engine.slots, engine.kv_tokens) == (1000, 3, 2000)
    assert (engine.gpu_layers, engine.tensor_split, engine.cache_type_k) == (0, (1.0, 2.0), "q8_0")
    assert (received.max_tokens, received.chat_template) == (77, "{{ x }}")
    assert received.chat_template_kwargs == {"enable_thinking": False}
    assert received.allow_request_templates is True
    assert received.drop_billing_header is False
    assert (received.model, received.incarnation, received.num_threads) == ("m", 3, 8)


@pytest.mark.parametrize(
    ("configured", "trained", "expected"),
    [(None, 2048, 2048), (None, 131072, AUTO_CONTEXT), (32768, 2048, 32768), (None, None, None)],
)
def test_auto_context_is_what_was_trained_up_to_a_limit(
    configured: int | None, trained: int | None, expected: int | None
) -> None:
    spec = model(context=configured)
    assert effective_context(spec, trained) == expected
    assert launch(spec, trained=trained).engine.context == (expected or AUTO_CONTEXT)


@pytest.mark.parametrize(
    ("configured", "trained", "kv_tokens", "expected"),
    [(None, 32768, 1000, 1000), (None, 512, 1000, 512), (4096, 4096, 1000, 1000), (512, 4096, 1000, 512)],
)
def test_context_is_never_more_than_the_pool_of_cells(
    configured: int | None, trained: int, kv_tokens: int, expected: int
) -> None:
    spec = model(context=configured, kv_tokens=kv_tokens)
    assert effective_context(spec, trained) == expected
    engine = launch(spec, trained=trained).engine
    assert (engine.context, engine.num_kv_cells) == (expected, kv_tokens)


def test_context_of_a_file_that_does_not_tell_it_fits_the_pool_too() -> None:
    assert launch(model(kv_tokens=1000), trained=None).engine.context == 1000


def test_threads_are_capped_by_the_models_own_limit() -> None:
    assert launch(model(engine={"threads": 2})).num_threads == 2
    assert launch(model(engine={"threads": 20})).num_threads == 8


@pytest.mark.parametrize(("slots", "leases"), [(1, 3), (4, 6), (8, 10), (16, 20)])
def test_a_few_requests_may_wait_behind_the_slots(slots: int, leases: int) -> None:
    assert default_max_leases(slots) == leases


def test_environment_is_an_allow_list_without_secrets() -> None:
    inherited = {
        "PATH": "/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "TZ": "Europe/Berlin",
        "LD_LIBRARY_PATH": "/lib",
        "LLAMA_CPP_LIB_PATH": "/lib",
        "CUDA_VISIBLE_DEVICES": "0",
        "HIP_VISIBLE_DEVICES": "0",
        "ROCR_VISIBLE_DEVICES": "0",
        "GGML_VK_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HOME": "/hf",
    }
    hidden = {
        "HF_TOKEN": "hf_x",
        "CORRAL_API_KEYS": "sk",
        "OPENAI_API_KEY": "sk",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PYTHONPATH": "/elsewhere",
        "LD_PRELOAD": "/evil.so",
    }
    env = worker_environment(inherited | hidden, {})
    assert not env.keys() & hidden.keys()
    assert inherited.items() <= env.items()


def test_worker_defaults_yield_to_the_user_and_the_models_env_wins() -> None:
    assert worker_environment({}, {})["GOMP_SPINCOUNT"] == "10000"
    assert worker_environment({}, {})["GGML_NO_BACKTRACE"] == "1"
    assert worker_environment({"SSL_CERT_FILE": "/etc/ca.pem"}, {})["SSL_CERT_FILE"] == "/dev/null", "it needs none"
    assert worker_environment({"GOMP_SPINCOUNT": "5"}, {})["GOMP_SPINCOUNT"] == "5"
    env = worker_environment({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1", "MY_FLAG": "x"})
    assert (env["CUDA_VISIBLE_DEVICES"], env["MY_FLAG"]) == ("1", "x")


def test_placement_overrides_the_models_options() -> None:
    gpu = Device("CUDA1", DeviceKind.GPU, 2**34, backend="CUDA", visible_as="GPU-b")
    spec = build_launch_spec(
        model(engine={"gpu_layers": -1, "batch_size": 64}),
        WorkerId("m", 0, 1),
        model_path=Path("/models/m.gguf"),
        socket_path=Path("/run/w1.sock"),
        trained_context=4096,
        num_threads=1,
        placement=Placement({"CUDA1": 2**30}, ("CUDA1",), gpu_layers=7),
        devices={"CUDA1": gpu},
    )
    engine = LaunchSpec.from_line(spec.to_line()).engine
    assert (engine.device, engine.gpu_layers, engine.batch_size) == ("CUDA0", 7, 64)


def test_a_hook_learns_what_has_happened_and_no_secret() -> None:
    inherited = {"PATH": "/bin", "HF_TOKEN": "hf_x", "CORRAL_API_KEYS": "sk", "CORRAL_MODEL": "forged"}
    env = hook_environment(inherited, event="after_load", model="m", model_path=Path("/models/m.gguf"))
    assert env == {
        "PATH": "/bin",
        "CORRAL_EVENT": "after_load",
        "CORRAL_MODEL": "m",
        "CORRAL_MODEL_PATH": "/models/m.gguf",
    }


def test_command_runs_the_installed_worker_whatever_lies_in_the_working_directory() -> None:
    assert worker_command() == [sys.executable, "-P", "-m", "worker"]
    assert worker_command(["other"]) == ["other"]


@pytest.fixture
def parent() -> Iterator[Path]:
    """An empty folder whose path leaves room for a socket's name; the system's own may be too long."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


# --- the directory they run in ----------------------------------------------------------------------------


def test_runtime_directory_is_private_and_gone_afterwards() -> None:
    runtime = RuntimeDir.create(Path("/tmp"))
    try:
        assert runtime.path.stat().st_mode & 0o777 == 0o700
        first, second = runtime.new_socket_path(), runtime.new_socket_path()
        assert first != second
        assert len(os.fsencode(first)) <= MAX_SOCKET_PATH_BYTES
    finally:
        runtime.remove()
    assert not runtime.path.exists()
    runtime.remove()


def test_directories_of_dead_routers_are_removed_and_those_of_live_ones_are_not(parent: Path) -> None:
    live = RuntimeDir.create(parent)
    dead = parent / "corral-dead"
    dead.mkdir()
    (dead / "pid").write_text("1\n")  # the id of a live process: only the lock counts
    (dead / "w1.sock").touch()
    young = parent / "corral-young"  # its router is about to write its id
    young.mkdir()
    stranger = parent / "other"
    stranger.mkdir()
    other = RuntimeDir.create(parent)
    try:
        assert not dead.exists()
        assert all(path.exists() for path in (live.path, young, stranger, other.path))
    finally:
        live.remove()
        other.remove()


def test_a_link_that_looks_like_a_dead_routers_directory_is_left_alone(parent: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (target / "pid").write_text("1\n")
    (parent / "corral-link").symlink_to(target)
    runtime = RuntimeDir.create(parent)
    runtime.remove()
    assert (target / "pid").exists()


def test_a_place_that_is_too_long_or_cannot_be_written_is_refused_with_what_to_set(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with pytest.raises(RuntimeDirError, match=r"too long.*XDG_RUNTIME_DIR"):
        RuntimeDir.create(long)
    with pytest.raises(RuntimeDirError, match="No such file"):
        RuntimeDir.create(Path("/nowhere"))


def test_default_place_is_the_users_runtime_directory_then_tmp() -> None:
    assert default_parents({"XDG_RUNTIME_DIR": "/run/user/1"}) == [Path("/run/user/1"), Path("/tmp")]
    assert default_parents({"XDG_RUNTIME_DIR": "relative"}) == [Path("/tmp")]
    assert default_parents({}) == [Path("/tmp")]
