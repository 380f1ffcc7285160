"""The private names of vLLM the plugin relies on: live, on unpacked sources, and when they change."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams

from assay.errors import SurfaceError
from assay.plugin.constants import SUPPORTED_ENGINES
from assay.plugin.endpoint import AssayEndpoints, check_workers
from assay.plugin.surfaces import SURFACES, Surface, check_version, resolve
from assay.plugin.worker import AssayWorker

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(vllm.__file__).resolve().parents[1]
WHEELS = ROOT / ".cache" / "wheels"
EACH = pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.path)


@pytest.fixture(scope="module")
def static() -> ModuleType:
    """``scripts/check_surfaces.py``, which reads sources without importing them."""
    path = ROOT / "scripts" / "check_surfaces.py"
    spec = importlib.util.spec_from_file_location("check_surfaces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@EACH
def test_every_surface_is_there_on_the_installed_vllm(surface: Surface) -> None:
    value = resolve(surface)
    assert value is getattr(importlib.import_module(surface.module), surface.name)


@EACH
def test_every_surface_is_there_in_the_installed_sources(
    surface: Surface, static: ModuleType
) -> None:
    """The two ways of looking agree on the version that can be checked both ways."""
    assert static.problems(INSTALLED, surface) == []


@EACH
def test_every_surface_says_why_and_where_it_was_checked(surface: Surface) -> None:
    assert len(surface.why) > 40
    assert {version.rsplit(".", 1)[0] for version in surface.checked} == set(SUPPORTED_ENGINES)


@pytest.mark.parametrize("version", ["0.31.0", "0.32.0", "0.33.0"])
def test_every_surface_is_there_on_each_supported_release(
    version: str, static: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = WHEELS / version
    if not folder.is_dir():
        pytest.skip(f"no unpacked sources of vLLM {version}; `make wheels` fetches them")
    assert static.main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SURFACES)
    assert all(line.endswith(": ok") for line in lines)


# -- when vLLM changes


@EACH
def test_f20_a_removed_name_refuses_and_is_named(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(importlib.import_module(surface.module), surface.name)
    with pytest.raises(SurfaceError, match="cannot work with this vLLM") as caught:
        resolve(surface)
    assert surface.path in str(caught.value)
    assert "0.31.0, 0.32.0, 0.33.0" in str(caught.value)


def test_a_removed_module_refuses_and_is_named() -> None:
    with pytest.raises(SurfaceError, match=r"vllm\.v1\.gone\.Name cannot be imported"):
        resolve(Surface("vllm.v1.gone", "Name", "why"))


METHODS = [(surface, method) for surface in SURFACES for method, _ in surface.methods]


@pytest.mark.parametrize(("surface", "method"), METHODS, ids=lambda x: getattr(x, "path", x))
def test_a_removed_method_refuses_and_is_named(
    surface: Surface, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class stays and loses the method: a subclass that hides it stands in for the release."""
    stock = getattr(importlib.import_module(surface.module), surface.name)
    changed = type(stock.__name__, (stock,), {method: None})
    monkeypatch.setattr(importlib.import_module(surface.module), surface.name, changed)
    with pytest.raises(SurfaceError, match=f"has no method {method}"):
        resolve(surface)


METHOD_PARAMS = [
    (surface, method, name)
    for surface in SURFACES
    for method, params in surface.methods
    for name in params
]


@pytest.mark.parametrize(
    ("surface", "method", "name"), METHOD_PARAMS, ids=lambda x: getattr(x, "path", x)
)
def test_a_removed_parameter_of_a_method_refuses_and_is_named(
    surface: Surface, method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = getattr(importlib.import_module(surface.module), surface.name)

    def without(self: Any) -> None: ...

    monkeypatch.setattr(
        importlib.import_module(surface.module),
        surface.name,
        type(stock.__name__, (stock,), {method: without}),
    )
    with pytest.raises(SurfaceError, match=f"{method} has no parameter"):
        resolve(surface)


@pytest.mark.parametrize(
    "surface", [s for s in SURFACES if s.params], ids=lambda surface: surface.path
)
def test_a_removed_parameter_refuses_and_is_named(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*args: Any) -> None: ...

    monkeypatch.setattr(importlib.import_module(surface.module), surface.name, without)
    with pytest.raises(SurfaceError, match=f"has no parameter {surface.params[0]}"):
        resolve(dataclasses.replace(surface, methods=(), fields=()))


def test_a_removed_field_refuses_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("vllm.v1.worker.gpu.input_batch")
    changed = dataclasses.make_dataclass("InputBatch", ["idx_mapping_np"])
    monkeypatch.setattr(module, "InputBatch", changed)
    surface = next(s for s in SURFACES if s.name == "InputBatch")
    with pytest.raises(SurfaceError, match="has no field seq_lens_cpu_upper_bound"):
        resolve(surface)


@EACH
def test_the_static_check_finds_a_missing_module(
    surface: Surface, static: ModuleType, tmp_path: Path
) -> None:
    assert static.problems(tmp_path, surface) == [f"{surface.path} is not defined"]


def test_the_static_check_finds_what_was_renamed(static: ModuleType, tmp_path: Path) -> None:
    """One file of a release, with a method, a parameter and a field renamed."""
    relative = Path("vllm/v1/worker/gpu/states.py")
    target = tmp_path / relative
    target.parent.mkdir(parents=True)
    shutil.copy(INSTALLED / relative, target)
    surface = next(s for s in SURFACES if s.path == "vllm.v1.worker.gpu.states.RequestState")
    assert static.problems(tmp_path, surface) == []
    wanting = dataclasses.replace(
        surface,
        params=(*surface.params, "max_num_reqs", "no_param"),
        methods=(("add_request", ("req_id", "no_arg")), ("no_method", ())),
    )
    assert static.problems(tmp_path, wanting) == [
        "RequestState has no parameter no_param",
        "RequestState.add_request has no parameter no_arg",
        "RequestState has no method no_method",
    ]
    target.write_text(target.read_text().replace("self.prefill_len", "self.filled"))
    assert static.problems(tmp_path, surface) == ["RequestState has no field prefill_len"]


def test_the_static_check_exits_with_1_when_something_is_missing(
    static: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert static.main([str(tmp_path)]) == 1
    assert "is not defined" in capsys.readouterr().out


# -- versions


@pytest.mark.parametrize(
    "version",
    ["0.31.0", "0.31.2", "0.32.0", "0.32.0+cpu", "0.33.0", "0.33.1.dev3+g12", "0.33.0rc1"],
)
def test_a_supported_version_passes(version: str) -> None:
    check_version(version)


def test_the_installed_version_passes() -> None:
    check_version(vllm.__version__)


@pytest.mark.parametrize(
    "version",
    ["0.30.9", "0.34.0", "0.3.1", "0.320.0", "1.32.0", "10.31.0", "0.25.1", "dev", "", "0"],
)
def test_f47_case41_an_unknown_version_is_refused_with_the_supported_range(version: str) -> None:
    """F47: an unknown minor must fail. Case 41: at the start, not on the first request."""
    with pytest.raises(SurfaceError, match=r"supports vLLM 0\.31\.x, 0\.32\.x, 0\.33\.x") as caught:
        check_version(version)
    assert f"but {version} is installed" in str(caught.value)
    assert "VLLM_PLUGINS" in str(caught.value)


# -- contracts with public classes


def test_f18_sampling_parameters_are_a_msgspec_struct_with_our_carrier() -> None:
    """F18: not a dataclass, so a dataclass check of its fields would pass on nothing."""
    assert not dataclasses.is_dataclass(SamplingParams)
    assert "extra_args" in SamplingParams.__struct_fields__


def test_f19_from_optional_forwards_the_carrier() -> None:
    extra = {"assay_trace": [1, 2], "assay_key": "k"}
    assert SamplingParams.from_optional(extra_args=extra).extra_args == extra
    assert SamplingParams.from_optional(extra_args=extra).clone().extra_args == extra


# -- runners and workers


def worker(module: str, sampler: Any) -> AssayWorker:
    """A worker whose runner class comes from ``module``."""
    runner = type("Runner", (), {"__module__": module})()
    runner.sampler = sampler
    made = AssayWorker()
    made.model_runner, made.rank = runner, 0
    return made


V1, V2 = "vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"


@pytest.mark.parametrize(("module", "name"), [(V1, "v1"), (V2, "v2"), ("my.runner", "unknown")])
def test_f20_a_worker_says_which_runner_it_has(module: str, name: str) -> None:
    ours = SimpleNamespace(assay_evidence=[], assay_generation=2, use_fp64_gumbel=False)
    status = worker(module, ours).assay_status()
    assert (status["runner"], status["sampler"], status["open_replays"]) == (name, "assay", 0)
    assert status["tape"] == {"runner": name, "generation": 2, "fp64": False, "device": "cpu"}
    assert status["hardware"] == current_platform.get_device_name()


def test_a_worker_that_cannot_tell_its_noise_says_no_tape() -> None:
    unknown = SimpleNamespace(assay_evidence=[], assay_generation=None, use_fp64_gumbel=False)
    assert worker(V1, unknown).assay_status()["tape"] is None
    assert worker(V1, None).assay_status()["tape"] is None


@pytest.mark.parametrize("module", [V1, V2])
def test_a_speculating_server_names_no_tape(module: str) -> None:
    """Drafts are accepted and rejected by other noise: a claim with this tape would fail for it."""
    ours = SimpleNamespace(assay_evidence=[], assay_generation=1, use_fp64_gumbel=False)
    speculating = worker(module, ours)
    speculating.model_runner.speculative_config = object()
    assert speculating.assay_status()["tape"] is None


def test_f20_both_runners_of_this_vllm_are_known_by_their_classes() -> None:
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner as RunnerV2
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as RunnerV1

    assert RunnerV1.__module__ == V1
    assert RunnerV2.__module__ == V2


def status(runner: str = "v1", sampler: str = "assay") -> dict[str, Any]:
    return {"rank": 3, "runner": runner, "sampler": sampler}


@pytest.mark.parametrize(
    "bad", [status("unknown"), status(sampler="Sampler"), status("unknown", "none")]
)
def test_f20_a_worker_that_does_not_sample_through_us_keeps_the_server_from_starting(
    bad: dict[str, Any],
) -> None:
    """F20: never answer unforced; both an unknown runner and a foreign sampler are named."""
    with pytest.raises(SurfaceError, match="worker 3 samples with"):
        check_workers([status(), bad])


def test_workers_without_a_sampler_are_fine_beside_one_that_has_it() -> None:
    """Earlier pipeline stages never sample."""
    check_workers([status("v2", "none"), status("v2")])
    with pytest.raises(SurfaceError, match="no worker has a sampler"):
        check_workers([status("v2", "none")])


def test_f02_a_server_without_the_stock_routes_refuses() -> None:
    from fastapi import FastAPI

    with pytest.raises(SurfaceError, match="serves no /v1/chat/completions, /v1/completions"):
        AssayEndpoints().attach_router(FastAPI())


def test_a_worker_without_our_sampler_has_no_evidence_and_does_not_fail() -> None:
    plain = worker(V1, object())
    assert plain.assay_status()["sampler"] == "object"
    assert plain.assay_take_evidence("k") is None
    plain.assay_drop_evidence("k")
    without = worker(V1, None)
    assert without.assay_status()["sampler"] == "none"
