"""The model folders a cheating executor serves under the honest name."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Literal

from assay.attacks.constants import DROPPED_LAYERS
from assay.demo.folders import made_once
from assay.demo.models import WEIGHTS, rounded_copy
from assay.errors import SettingsError

Weights = Literal["full", "int8", "fp8", "int4", "fewer-layers"]

_LAYER = re.compile(r"(\.layers\.)(\d+)(\.)")


def served_folder(model: Path, weights: Weights) -> Path:
    """The folder to serve: ``model`` itself, or a copy of it made once beside it."""
    if weights == "full":
        return model
    if weights == "fewer-layers":
        return shortened_copy(model, DROPPED_LAYERS)
    return rounded_copy(model, weights)


def shortened_copy(model: Path, dropped: int) -> Path:
    """A copy of the folder ``model`` without ``dropped`` decoder layers around the middle.

    Middle layers change the residual stream least (the observation behind layer pruning, such as
    Gromov et al. 2024), so a cheat would drop those. Raises SettingsError when the model has
    no ``model.safetensors`` or not that many layers to spare.
    """
    if not (model / WEIGHTS).is_file():
        raise SettingsError(f"{model} has no {WEIGHTS}; give a folder made by smollm2()")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    layers = int(config["num_hidden_layers"])
    if not 0 < dropped < layers - 1:
        raise SettingsError(f"{dropped} of {layers} layers cannot be dropped")
    folder = model.parent / f"{model.name}-{layers - dropped}-layers"
    return made_once(folder, lambda scratch: _shorten_into(model, config, dropped, scratch))


def kept_layers(layers: int, dropped: int) -> dict[int, int]:
    """Old index of every kept layer -> its new index."""
    first = (layers - dropped) // 2
    kept = [i for i in range(layers) if not first <= i < first + dropped]
    return {old: new for new, old in enumerate(kept)}


def _shorten_into(model: Path, config: dict[str, object], dropped: int, into: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    layers = int(str(config["num_hidden_layers"]))
    places = kept_layers(layers, dropped)
    for file in model.iterdir():
        if file.is_file() and file.name not in (WEIGHTS, "config.json"):
            shutil.copy2(file, into / file.name)
    shorter = config | {"num_hidden_layers": layers - dropped}
    (into / "config.json").write_text(json.dumps(shorter, indent=2), encoding="utf-8")
    tensors = {}
    with safe_open(model / WEIGHTS, framework="pt") as weights:
        header = weights.metadata()
        for name in weights.keys():  # noqa: SIM118 - a safetensors handle is no mapping
            found = _LAYER.search(name)
            if found is None:
                tensors[name] = weights.get_tensor(name)
            elif int(found[2]) in places:
                renamed = _LAYER.sub(rf"\g<1>{places[int(found[2])]}\g<3>", name)
                tensors[renamed] = weights.get_tensor(name)
    save_file(tensors, into / WEIGHTS, metadata=header)
