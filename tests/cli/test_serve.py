"""``assay serve``: presets, their overriding in every spelling, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.cli import machine
from assay.cli.main import run
from assay.cli.presets import MLA, choose, family_of, flag_value, given_flags
from assay.cli.serve import WORKER_EXTENSION, plan
from assay.errors import SettingsError

QWEN = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"


def flags(arguments: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_production_presets_of_the_large_qwen_on_nvidia() -> None:
    launch = plan(QWEN, [], {"VLLM_PLUGINS": ""}, "nvidia")
    assert launch.family == "qwen3-moe-235b"
    given = flags(launch.arguments)
    assert given["--attention-backend"] == "FLASHINFER"
    assert given["--dtype"] == "auto"
    assert given["--max-num-batched-tokens"] == "32768"
    assert given["--gpu-memory-utilization"] == "0.925"
    assert given["--tensor-parallel-size"] == "4"
    assert given["--max-model-len"] == "240000"
    assert "+fused_moe" in json.loads(given["--compilation-config"])["custom_ops"]
    assert given["--worker-extension-cls"] == WORKER_EXTENSION


def test_a_cpu_gets_no_flag_of_a_gpu() -> None:
    launch = plan(QWEN, [], {}, "cpu")
    assert set(flags(launch.arguments)) == {"--dtype", "--logprobs-mode", "--worker-extension-cls"}


def test_a_cpu_engine_keeps_the_memory_of_a_replay_unless_told_otherwise() -> None:
    names = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    assert names <= plan("a/b", [], {}, "cpu").environment.keys()
    assert not names & plan("a/b", [], {}, "nvidia").environment.keys()
    assert not names & plan("a/b", [], {}, "cpu", use_presets=False).environment.keys()
    mine = plan("a/b", [], {"MALLOC_TRIM_THRESHOLD_": "1"}, "cpu").environment
    assert names & mine.keys() == {"MALLOC_MMAP_THRESHOLD_"}


def test_flashinfer_is_for_nvidia_and_not_for_latent_attention() -> None:
    assert "--attention-backend" not in plan("a/b", [], {}, "rocm").arguments
    assert "--attention-backend" not in plan("deepseek-ai/DeepSeek-V4", [], {}, "nvidia").arguments
    assert "--attention-backend" in plan("a/b", [], {}, "nvidia").arguments


SPELLINGS = [
    (["--dtype", "float32"], "dtype"),
    (["--dtype=float32"], "dtype"),
    (["-tp", "8"], "tensor-parallel-size"),
    (["-tp=8"], "tensor-parallel-size"),
    (["--tensor_parallel_size", "8"], "tensor-parallel-size"),
    (["--max_model_len=10"], "max-model-len"),
    (["-cc.mode=3"], "compilation-config"),
    (["--compilation-config.mode", "3"], "compilation-config"),
    (["-cc", "{}"], "compilation-config"),
    (["-O3"], "optimization-level"),
    (["--attention-config.backend", "X"], "attention-backend"),
    (["-ac.backend=X"], "attention-backend"),
    (["--no-enable-prefix-caching"], "enable-prefix-caching"),
]


@pytest.mark.parametrize(("arguments", "flag"), SPELLINGS)
def test_every_spelling_of_a_flag_is_seen(arguments: list[str], flag: str) -> None:
    assert flag in given_flags(arguments)


@pytest.mark.parametrize(
    ("arguments", "flag"), [(a, f) for a, f in SPELLINGS if f not in ("optimization-level",)][:-1]
)
def test_the_callers_flag_replaces_the_preset(arguments: list[str], flag: str) -> None:
    launch = plan(QWEN, arguments, {}, "nvidia")
    assert flag in [preset.flag for preset in launch.chosen.overridden]
    assert f"--{flag}" not in launch.arguments[: -len(arguments)]
    assert list(launch.arguments[-len(arguments) :]) == arguments


def test_values_are_not_taken_for_flags() -> None:
    assert given_flags(["--seed", "-1", "--x", "-0.5", "plain"]) == {"seed", "x"}


def test_presets_stand_before_the_callers_flags_so_that_the_last_one_wins() -> None:
    launch = plan("a/b", ["--max-num-batched", "8"], {}, "nvidia")  # argparse takes abbreviations
    assert launch.arguments.index("--max-num-batched-tokens") < launch.arguments.index(
        "--max-num-batched"
    )


def test_flags_of_a_config_file_count(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("dtype: float32\nmax_model_len: 8\n")
    pytest.importorskip("yaml", reason="PyYAML comes with vLLM, which is not installed")
    launch = plan(QWEN, ["--config", str(config)], {}, "nvidia")
    assert {"dtype", "max-model-len"} <= {preset.flag for preset in launch.chosen.overridden}


def test_another_worker_extension_is_refused_with_the_reason() -> None:
    with pytest.raises(SettingsError, match=r"my\.Ext: vLLM takes one"):
        plan("a/b", ["--worker-extension-cls", "my.Ext"], {}, "cpu")
    ours = plan("a/b", [f"--worker_extension_cls={WORKER_EXTENSION}"], {}, "cpu")
    assert "--worker-extension-cls" not in ours.arguments


def test_a_worker_extension_in_a_config_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="PyYAML comes with vLLM, which is not installed")
    config = tmp_path / "c.yaml"
    config.write_text("worker-extension-cls: my.Ext\n")
    with pytest.raises(SettingsError, match="take it out of the file"):
        plan("a/b", [f"--config={config}"], {}, "cpu")


def test_the_model_comes_first() -> None:
    with pytest.raises(SettingsError, match="MODEL must come first"):
        plan("--dtype", ["float32", "a/b"], {}, "cpu")


@pytest.mark.parametrize("current", ["mine", "mine,assay", " mine , assay_endpoints "])
def test_names_already_in_vllm_plugins_stay(current: str) -> None:
    names = machine.plugin_names(current).split(",")
    assert names[0] == "mine"
    assert sorted(names) == ["assay", "assay_endpoints", "mine"]


def test_unset_means_every_installed_plugin_and_stays_so() -> None:
    names = machine.plugin_names(None).split(",")
    assert {"assay", "assay_endpoints"} <= set(names)
    if machine.engine() is not None:
        assert "lora_filesystem_resolver" in names  # vLLM's own, loaded by default


def write_config(folder: Path, **config: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_a_local_folder_is_known_by_its_config(tmp_path: Path) -> None:
    small = write_config(tmp_path / "a", model_type="qwen3_moe", hidden_size=2048)
    large = write_config(
        tmp_path / "b", model_type="qwen3_moe", hidden_size=4096, num_hidden_layers=94
    )
    latent = write_config(tmp_path / "c", text_config={"kv_lora_rank": 512})
    llama = write_config(tmp_path / "d", model_type="llama")
    names = [family_of(folder).name for folder in (small, large, latent, llama)]
    assert names == ["qwen3-moe", "qwen3-moe-235b", "mla", "generic"]


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config\.json"):
        family_of(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen/Qwen3-30B-A3B", "qwen3-moe"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-moe"),
        ("Qwen/Qwen3-8B", "generic"),
        ("moonshotai/Kimi-K2.6", "mla"),
        ("zai-org/GLM-5.3", "mla"),
        ("deepseek-ai/DeepSeek-R1", "mla"),
        ("MiniMaxAI/MiniMax-M2.7", "generic"),
    ],
)
def test_hub_names(name: str, family: str) -> None:
    assert family_of(name).name == family


def test_presets_can_be_switched_off() -> None:
    launch = plan(QWEN, [], {}, "nvidia", use_presets=False)
    assert launch.arguments == ("--worker-extension-cls", WORKER_EXTENSION)


def test_speculative_decoding_is_warned_of() -> None:
    launch = plan("a/b", ["--speculative-config", "{}"], {}, "cpu")
    assert any("refuses replays" in warning for warning in launch.warnings)


def test_the_last_value_of_a_flag_counts() -> None:
    assert flag_value(["--a", "1", "--a=2"], "a") == "2"
    assert flag_value(["--a"], "a") is None


def test_choose_leaves_nothing_out() -> None:
    chosen = choose(MLA, "nvidia", {"dtype"})
    assert [preset.flag for preset in chosen.overridden] == ["dtype"]
    assert "logprobs-mode" in [preset.flag for preset in chosen.applied]


def test_dry_run_prints_command_and_environment_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    model = write_config(tmp_path / "m", model_type="llama")
    assert run(["serve", model, "--dry-run", "--port", "8001", "-tp", "2"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("VLLM_PLUGINS=mine,assay,assay_endpoints ")
    assert printed.out.rstrip().endswith("--port 8001 -tp 2")
    assert f"--worker-extension-cls {WORKER_EXTENSION}" in printed.out
    assert "presets for generic models" in printed.err
