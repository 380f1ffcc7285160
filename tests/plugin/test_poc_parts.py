"""Parts of the proof-of-compute forward on small torch modules, without an engine."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from assay.errors import SurfaceError
from assay.plugin.poc.metadata import Group, blocks_needed, build, groups_of, part_filled
from assay.plugin.poc.reflect import decoder_layers, reflections
from assay.plugin.poc.scratch import ScratchCache, bound, layout_of, shared_owners
from assay.poc.torch_batch import layer_vectors

HIDDEN, LAYERS = 16, 3
CPU = torch.device("cpu")


class Attention(nn.Module):
    """Stands where vLLM's attention layer stands: a module that owns a cache."""

    def __init__(self, sharing: str | None = None) -> None:
        super().__init__()
        self.kv_cache: Any = torch.zeros(2, 10, 4, 32, 8)
        self.kv_sharing_target_layer_name = sharing


class Layer(nn.Module):
    """A decoder layer of the usual form; ``returns`` names what it gives back."""

    def __init__(self, returns: str = "pair", attends: bool = True) -> None:
        super().__init__()
        self.attention: nn.Module = Attention() if attends else nn.Identity()
        self.returns = returns

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        y = x + 1
        return {
            "states": y,
            "one": (y,),
            "pair": (y, x * 2 if residual is None else residual + x),
            "no residual": (y, None),
            "same": (y, y),
            "three": (y, y, y),
            "narrow": (y, y[..., :4]),
            "text": ("hidden", y),
        }[self.returns]


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


def attentions(model: nn.Module) -> set[int]:
    return {id(module) for module in model.modules() if isinstance(module, Attention)}


def found(model: nn.Module, held: range = range(LAYERS), count: int = LAYERS) -> list[int]:
    return sorted(decoder_layers(model, count, held, attentions(model)))


@pytest.fixture
def vectors() -> torch.Tensor:
    return layer_vectors("BLOCK", LAYERS, HIDDEN)


def mirrored(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return x - 2 * (x @ v).unsqueeze(-1) * v


# Where reflections attach


def test_layers_are_found_by_structure_whatever_they_are_called() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision = Stack(Layer(attends=False), Layer(attends=False), Layer(attends=False))
            self.blöcke = Stack(Layer(), Layer(), Layer())

    assert found(Odd()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([Layer(), Layer()], "0 such lists"),
        ([Layer(attends=False)] * 3, "0 such lists"),
        ([Layer(), Layer(attends=False), Layer()], r"layers \[1\] are not attention layers"),
    ],
)
def test_f74_a_stack_that_cannot_be_reflected_whole_is_refused(
    layers: list[nn.Module], says: str
) -> None:
    """F74: as many layers as the model has, or none."""
    with pytest.raises(SurfaceError, match=says):
        found(Stack(*layers))


def test_two_stacks_are_ambiguous() -> None:
    model = nn.ModuleDict({"encoder": Stack(*(Layer() for _ in range(3)))})
    model["decoder"] = Stack(*(Layer() for _ in range(3)))
    with pytest.raises(SurfaceError, match="2 such lists"):
        found(model)


def test_a_pipeline_stage_holds_its_part() -> None:
    stage = Stack(nn.Identity(), Layer(), Layer())
    assert found(stage, range(1, 3)) == [1, 2]
    with pytest.raises(SurfaceError, match=r"layers \[0\]"):
        found(stage, range(3))


# What they do


@pytest.mark.parametrize("returns", ["states", "one", "pair", "no residual", "same"])
def test_every_usual_output_is_reflected(returns: str, vectors: torch.Tensor) -> None:
    x = torch.randn(5, HIDDEN)
    layer = Layer(returns)
    plain = layer(x.clone())
    with reflections({1: layer}, vectors):
        given = layer(x.clone())
    plain, given = (part if isinstance(part, tuple) else (part,) for part in (plain, given))
    for before, after in zip(plain, given, strict=True):
        if before is None:
            assert after is None
        else:
            assert torch.allclose(after, mirrored(before, vectors[1]), atol=1e-5)


@pytest.mark.parametrize("returns", ["three", "narrow", "text"])
def test_f74_an_unusual_output_is_refused(returns: str, vectors: torch.Tensor) -> None:
    """F74: raised, not swallowed; and no hook stays."""
    layer = Layer(returns)
    with (
        pytest.raises(SurfaceError, match="decoder layer 2 does not return"),
        reflections({2: layer}, vectors),
    ):
        layer(torch.randn(5, HIDDEN))
    assert not layer._forward_hooks


@pytest.mark.parametrize("calls", [[], [0, 1], [0, 1, 1, 2], [0, 2, 1]])
def test_f74_every_layer_once_and_in_order(calls: list[int], vectors: torch.Tensor) -> None:
    """F74: a stack that ran past its hooks gives no vectors."""
    layers = {index: Layer() for index in range(LAYERS)}
    with (
        pytest.raises(SurfaceError, match=rf"called layers \[{', '.join(map(str, calls))}\]"),
        reflections(layers, vectors),
    ):
        for index in calls:
            layers[index](torch.randn(5, HIDDEN))
    assert not any(layer._forward_hooks for layer in layers.values())


def test_f32_hooks_are_gone_after_every_exit(vectors: torch.Tensor) -> None:
    """F32: after an error the layer computes what it always did, and the error is the one raised."""
    layer = Layer("states")
    with pytest.raises(ZeroDivisionError), reflections({0: layer}, vectors):
        raise ZeroDivisionError
    assert not layer._forward_hooks
    x = torch.randn(5, HIDDEN)
    assert torch.equal(layer(x.clone()), x + 1)


def test_f33_reflections_are_in_the_dtype_of_the_states(vectors: torch.Tensor) -> None:
    layer = Layer("pair")
    with reflections({0: layer}, vectors):
        given = layer(torch.randn(5, HIDDEN, dtype=torch.bfloat16))
    assert {part.dtype for part in given} == {torch.bfloat16}


# The scratch cache


@pytest.fixture(params=["plain", "strided", "blocks second", "float8", "mla"])
def live(request: pytest.FixtureRequest) -> Iterator[torch.Tensor]:
    """Caches of 10 blocks as vLLM lays them out."""
    yield {
        "plain": torch.zeros(10, 2, 4, 32, 8),
        "strided": torch.zeros(10, 4, 2, 32, 8).permute(0, 2, 1, 3, 4),
        "blocks second": torch.zeros(2, 10, 4, 32, 8),
        "float8": torch.zeros(10, 2, 4, 32, 8).to(torch.float8_e4m3fn),
        "mla": torch.zeros(10, 16, 576),
    }[request.param]


def test_f25_scratch_has_the_layout_of_the_live_cache(live: torch.Tensor) -> None:
    """F25: same dtype, same sizes but for the blocks, same order of strides; nothing flattened."""
    layout = layout_of(live, 10, "layer")
    scratch = ScratchCache().get(layout, 7)
    assert scratch.dtype == live.dtype
    assert scratch.shape[layout.block_dim] == 7
    others = [dim for dim in range(live.ndim) if dim != layout.block_dim]
    assert [scratch.shape[dim] for dim in others] == [live.shape[dim] for dim in others]
    order = sorted(range(live.ndim), key=lambda dim: -live.stride(dim))
    assert sorted(range(live.ndim), key=lambda dim: -scratch.stride(dim)) == order
    assert scratch.untyped_storage().data_ptr() != live.untyped_storage().data_ptr()


def test_scratch_is_kept_grown_and_counted(live: torch.Tensor) -> None:
    layout = layout_of(live, 10, "layer")
    scratch = ScratchCache()
    first = scratch.get(layout, 5)
    assert scratch.get(layout, 3) is first
    larger = scratch.get(layout, 6)
    assert scratch.get(layout, 5) is larger
    assert scratch.bytes == live.numel() * live.element_size() // 10 * 6


def test_clearing_reaches_the_named_blocks_only(live: torch.Tensor) -> None:
    layout = layout_of(live, 10, "layer")
    scratch = ScratchCache()
    tensor = scratch.get(layout, 5)
    tensor.view(torch.uint8).fill_(0x7F)  # NaN in float8, a number elsewhere
    scratch.clear(layout, torch.tensor([2, 4]))
    blocks = tensor.view(torch.uint8).movedim(layout.block_dim, 0)
    assert [bool((block == 0).all()) for block in blocks] == [False, False, True, False, True]
    assert [bool((block == 0x7F).all()) for block in blocks] == [True, True, False, True, False]


@pytest.mark.parametrize("cache", [[torch.zeros(2)], None, torch.zeros(10, 4)])
def test_a_state_space_cache_is_refused(cache: Any) -> None:
    with pytest.raises(SurfaceError, match=r"mixer.*state-space"):
        layout_of(cache, 10, "mixer")


def test_an_unknown_block_count_is_refused() -> None:
    with pytest.raises(SurfaceError, match="11 blocks cannot be found"):
        layout_of(torch.zeros(10, 2, 4), 11, "layer")


def test_a_cache_that_later_layers_read_is_not_shared_with_those_between() -> None:
    """Layer 2 reads what layer 0 wrote; layer 1 must not have written there."""
    layers = {"0": Attention(), "1": Attention(), "2": Attention(sharing="0")}
    owners = shared_owners(layers)
    scratch = ScratchCache()
    tensors = {
        name: scratch.get(layout_of(layer.kv_cache, 10, name, owners.get(name, "")), 4)
        for name, layer in layers.items()
    }
    assert tensors["0"] is tensors["2"]
    assert tensors["1"] is not tensors["0"]


def test_caches_are_bound_back_on_every_exit() -> None:
    layers = {"a": Attention(), "b": Attention()}
    live = {name: layer.kv_cache for name, layer in layers.items()}
    scratch = torch.zeros(1)
    with pytest.raises(ZeroDivisionError), bound(layers, dict.fromkeys(layers, scratch)):
        assert all(layer.kv_cache is scratch for layer in layers.values())
        raise ZeroDivisionError
    assert all(layers[name].kv_cache is cache for name, cache in live.items())


# Blocks


@pytest.mark.parametrize(
    ("batch", "seq_len", "size", "blocks", "tails"),
    [(1, 1, 16, 2, [1]), (3, 33, 16, 10, [3, 6, 9]), (2, 64, 32, 5, None), (2, 5, 4, 5, [2, 4])],
)
def test_f22_f24_blocks_of_a_batch(
    batch: int, seq_len: int, size: int, blocks: int, tails: list[int] | None
) -> None:
    """F22, F24: by this group's block size, one more for block 0, which nobody writes."""
    assert blocks_needed(batch, seq_len, size) == blocks
    filled = part_filled(batch, seq_len, size, CPU)
    assert (None if filled is None else filled.tolist()) == tails


class Builder:
    """Gives back what a backend's metadata builder is asked to build from."""

    def build(self, common_prefix_len: int, common: Any) -> Any:
        assert common_prefix_len == 0
        return common


def test_f21_to_f24_metadata_of_two_groups() -> None:
    """F21: fresh each call. F22: blocks of each group's own size. F23: lengths on the host for MLA.
    F24: nothing in block 0."""
    groups = [Group(Builder(), ("a", "b"), 16), Group(Builder(), ("c",), 4)]
    metadata, slots, positions = build(groups, 2, 18, CPU)
    again, _, _ = build(groups, 2, 18, CPU)
    assert positions.tolist() == [*range(18), *range(18)]
    for name, size, table in (
        ("a", 16, [[1, 2], [3, 4]]),
        ("c", 4, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]),
    ):
        common = metadata[name]
        assert again[name] is not common
        assert again[name].block_table_tensor is not common.block_table_tensor
        assert common.block_table_tensor.tolist() == table
        expected = [row[at // size] * size + at % size for row in table for at in range(18)]
        assert slots[name].tolist() == common.slot_mapping.tolist() == expected
        assert min(expected) >= size
        assert common.seq_lens.tolist() == [18, 18]
        assert common.query_start_loc.tolist() == [0, 18, 36]
        assert common.seq_lens_cpu_upper_bound.tolist() == [18, 18]
        assert common.seq_lens_cpu_upper_bound.device == CPU
        assert common.causal is True
    assert metadata["a"] is metadata["b"]


class Named:
    """An attention group as a runner keeps it."""

    layer_names: ClassVar = ["model.layers.0.attn"]

    def __init__(self, name: str, spec: Any) -> None:
        self.backend = type(name, (), {"get_name": staticmethod(lambda: name)})
        self._builder = Builder()
        self._builder.kv_cache_spec = spec  # type: ignore[attr-defined]

    def get_metadata_builder(self, ubatch: int) -> Builder:
        assert ubatch == 0
        return self._builder


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("Mamba", SimpleNamespace(block_size=16), "has no token blocks"),
        ("Linear", SimpleNamespace(block_size=None, head_size=32), "has no token blocks"),
        ("CPU_MLA", SimpleNamespace(block_size=16, head_size=576), "CPU_MLA does not keep"),
    ],
)
def test_groups_that_cannot_hold_a_proof_are_refused(name: str, spec: Any, says: str) -> None:
    runner = SimpleNamespace(attn_groups=[[Named(name, spec)]])
    with pytest.raises(SurfaceError, match=says):
        groups_of(runner)


def test_groups_keep_their_own_block_sizes() -> None:
    """F22: the cache configuration's one number is not used."""
    specs = [SimpleNamespace(block_size=size, head_size=32) for size in (256, 64, 8, 4)]
    runner = SimpleNamespace(attn_groups=[[Named("Usual", spec)] for spec in specs])
    assert [group.block_size for group in groups_of(runner)] == [256, 64, 8, 4]
