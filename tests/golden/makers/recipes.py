"""What the makers of golden recipes share: `tests/golden/recipes/CASE` has models, `recipe.toml`, and what its result is.

`expected.safetensors` is what the library makes; `tolerance.safetensors` how far each value may be from it. A tensor without
a tolerance must be the same bit for bit.
"""

import importlib.metadata
import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file

RECIPES = pathlib.Path(__file__).resolve().parents[1] / "recipes"


def case(name):
    """An empty directory for a case."""
    directory = RECIPES / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def keep(directory, *names):
    """Removes all other files of a directory, and paths of this machine from the JSON ones."""
    for path in sorted(directory.iterdir()):
        if path.name not in names:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif path.suffix == ".json":
            settings = json.loads(path.read_text())
            for key in ("_name_or_path", "base_model_name_or_path"):
                if key in settings:
                    settings[key] = None
            path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def save(directory, recipe, expected, tolerance, how, *packages):
    """Writes the recipe and what it must give."""
    (directory / "recipe.toml").write_text(recipe)
    made = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in (*packages, "torch"))
    metadata = {"made with": made, "how": how}
    save_file({n: t.detach().contiguous().clone() for n, t in expected.items()}, directory / "expected.safetensors", metadata)
    # Rounded up: the bound itself may be between two binary32 values.
    up = {n: torch.from_numpy(np.nextafter(t.numpy().astype(np.float32), np.float32(np.inf))) for n, t in tolerance.items()}
    if up:
        save_file(up, directory / "tolerance.safetensors")
    size = sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())
    print(f"{directory.name}: {len(expected)} tensors, {size} bytes")
