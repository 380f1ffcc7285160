"""Layer reflections: where they attach, and that they are gone when the forward ends.

Decoder layers are found by structure, never by a list of class names: the one ``ModuleList`` with
as many entries as the model has layers, whose entries hold the engine's attention layers. A model
where that is not unambiguous is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from assay.errors import SurfaceError
from assay.poc.torch_batch import reflect_


def decoder_layers(
    model: nn.Module, n_layers: int, held: range, attention_modules: set[int]
) -> dict[int, nn.Module]:
    """Layer index -> module, for the layers this pipeline stage holds: those in ``held``, all of them.

    ``attention_modules`` are the ``id`` of the modules vLLM runs attention in. Pipeline stages keep
    placeholders for the layers of other stages, so the list's length is the whole model's count.
    Raises SurfaceError when no list, or more than one, fits, and when a layer of the stage has no
    attention of its own: what it computes is then unknown here.
    """
    found: list[dict[int, nn.Module]] = []
    for module in model.modules():
        if not isinstance(module, nn.ModuleList) or len(module) != n_layers:
            continue
        holding = {
            index: layer
            for index, layer in enumerate(module)
            if any(id(inner) in attention_modules for inner in layer.modules())
        }
        if holding:
            found.append(holding)
    if len(found) != 1:
        raise SurfaceError(
            f"proof of compute needs the model's {n_layers} decoder layers in one list; "
            f"{len(found)} such lists found in {type(model).__name__}"
        )
    missing = sorted(set(held) ^ set(found[0]))
    if missing:
        raise SurfaceError(
            f"proof of compute reflects every decoder layer of {type(model).__name__}, but layers "
            f"{missing} are not attention layers of this pipeline stage, which holds "
            f"{held.start} to {held.stop - 1}"
        )
    return found[0]


@contextmanager
def reflections(layers: dict[int, nn.Module], vectors: torch.Tensor) -> Iterator[None]:
    """Reflect every layer's output for the duration of the block (F32: detached on every exit).

    ``vectors`` [n_layers, hidden]. Raises SurfaceError from inside the forward when a layer returns
    something else than hidden states, or the pair (hidden states, residual), of width ``hidden``,
    and at the end of the block unless every layer was reflected exactly once, in order (F74: never
    artifacts without reflections).
    """
    handles = []
    fired: list[int] = []
    try:
        for index, layer in layers.items():
            handles.append(layer.register_forward_hook(_hook(vectors[index], index, fired)))
        yield
        if fired != sorted(layers):
            raise SurfaceError(
                f"{len(layers)} decoder layers were to be reflected once each, but the forward "
                f"called layers {fired}; proof of compute is refused"
            )
    finally:
        for handle in handles:
            handle.remove()


def _hook(vector: torch.Tensor, index: int, fired: list[int]) -> Any:
    def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        parts = output if isinstance(output, tuple | list) else (output,)
        tensors = [part for part in parts if part is not None]
        if not 1 <= len(tensors) <= 2 or not all(
            isinstance(part, torch.Tensor) and part.shape[-1] == vector.shape[-1]
            for part in tensors
        ):
            raise SurfaceError(
                f"decoder layer {index} does not return hidden states or (hidden states, residual)"
            )
        if len(tensors) == 2 and tensors[0].data_ptr() == tensors[1].data_ptr():
            del tensors[1]  # one tensor under both names: twice would undo the reflection
        for part in tensors:
            reflect_(part, vector)
        fired.append(index)
        return output

    return hook
