"""A trained network in the format of Hugging Face: a folder with weights, configuration, tokenizer and model card."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import save_model
from torch import nn

from tardygrad.errors import Invalid, RecordError
from tardygrad.tasks.data.hub import quiet
from tardygrad.tasks.views import buffers, copied, trainable

WEIGHTS = "model.safetensors"
EXPORTED = (
    "config.json", "generation_config.json", "adapter_config.json", "*.safetensors", "model.safetensors.index.json",
    "tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*",
)  # fmt: skip
"""The files of an export that `from_pretrained` looks for."""
TAG = 'tags: ["tardygrad"'  # in the header of a model card
BASE = "base"  # the subfolder of a base that can be found nowhere else


def save(module: nn.Module, folder: Path, *, tokenizer: Any, facts: str, overwrite: bool) -> list[Path]:
    """Write a network to a folder, and return its files.

    Adapters of peft stay adapters. Their base is written to a subfolder if it did not come from a folder or the hub, or
    if training has changed it.

    Args:
        module: a network of transformers or peft, a wrapper around one, or any other.
        folder: its files appear when all of them are complete.
        tokenizer: saved too if it is not None.
        facts: Markdown about the training, for the model card.
        overwrite: whether the folder may have files; those of an earlier export are removed, others stay.
    """
    _check_folder(folder, overwrite=overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".saving-", dir=folder) as name:
            draft = Path(name)
            header, loading = _write(_unwrapped(module), draft, folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(str(draft))
            card = f"---\n{_yaml(header)}---\n\n# {_plain(folder.name)}\n\n{loading}\n{facts}"
            (draft / "README.md").write_text(card, "utf-8")
            for file in [file for place in (folder, folder / BASE) for file in _exported(place)]:
                file.unlink()
            files = sorted(file.relative_to(draft) for file in draft.rglob("*") if file.is_file())
            for file in files:
                (folder / file).parent.mkdir(exist_ok=True)
                (draft / file).replace(folder / file)
            if (folder / BASE).is_dir() and not any((folder / BASE).iterdir()):
                (folder / BASE).rmdir()
    except OSError as error:
        raise RecordError(f"cannot write to {str(folder)!r}: {error.strerror or error}.") from error
    return [folder / file for file in files]


def _check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise `Invalid` if a model must not be saved to a folder."""
    if folder.exists() and not folder.is_dir():
        raise Invalid(f"a model is saved to a folder, got the file {str(folder)!r}.")
    if any((folder / name).exists() for name in ("spec.json", "events.jsonl", "checkpoints")):
        raise Invalid(f"{str(folder)!r} holds a run, whose model would be replaced. Choose another folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        fix = "Choose another folder, or add --force (in Python: overwrite=True)."
        raise Invalid(f"{str(folder)!r} is not empty. {fix}")
    card = folder / "README.md"
    if (found := _exported(folder)) and not (card.is_file() and TAG in card.read_text("utf-8", errors="replace")):
        rule = f"{str(folder)!r} holds a model that tardygrad did not write, {found[0].name}"
        raise Invalid(f"{rule}. Choose another folder.")


def _exported(folder: Path) -> list[Path]:
    return [file for pattern in EXPORTED for file in sorted(folder.glob(pattern)) if file.is_file()]


def _unwrapped(module: nn.Module) -> nn.Module:
    """The network of transformers in a wrapper that adds nothing to it."""
    children = list(module.named_children())
    if hasattr(module, "save_pretrained") or len(children) != 1 or not hasattr(children[0][1], "save_pretrained"):
        return module
    name, child = children[0]
    return child if all(key.startswith(f"{name}.") for key in module.state_dict()) else module


def _write(module: Any, draft: Path, folder: Path) -> tuple[dict[str, Any], str]:
    """Write the weights; returns the header of the model card, and how to load them."""
    tags, kind = ["tardygrad"], type(module).__name__
    if hasattr(module, "peft_config"):
        base = _write_adapters(module, draft, folder)
        known = {"base_model": base} if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not Path(base).exists() else {}
        name = type(module.get_base_model()).__name__
        code = [
            "from peft import PeftModel",
            f"from transformers import {name}",
            "",
            f"base = {name}.from_pretrained({_shared(base, folder)!r})",
            f"model = PeftModel.from_pretrained(base, {folder.name!r})",
        ]
        return {"library_name": "peft", **known, "tags": [*tags, "lora"]}, _code(code)
    if hasattr(module, "save_pretrained"):
        with quiet():
            module.save_pretrained(str(draft))
        code = [f"from transformers import {kind}", "", f"model = {kind}.from_pretrained({folder.name!r})"]
        return {"library_name": "transformers", "tags": tags}, _code(code)
    save_model(module, str(draft / WEIGHTS))
    code = [
        "from safetensors.torch import load_model",
        "",
        f"load_model(network, {f'{folder.name}/{WEIGHTS}'!r})  # network: your {kind}",
    ]
    return {"library_name": "pytorch", "tags": tags}, _code(code)


def _write_adapters(module: Any, draft: Path, folder: Path) -> str:
    """Write adapters, and their base if that is necessary; returns the name or the folder of the base."""
    adapter = module.active_adapter
    settings = module.peft_config[adapter]
    base = settings.base_model_name_or_path
    changed = any(buffers(module)) or any(f".{adapter}" not in name for name in trainable(module))
    if not base or changed:
        base = str((folder / BASE).resolve())
    elif Path(base).resolve() in (folder.resolve(), (folder / BASE).resolve()):
        raise Invalid(f"{str(folder)!r} holds the base of these adapters. Choose another folder.")
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about embeddings that are saved too
        if base != settings.base_model_name_or_path:
            whole: Any = copied(module, share_frozen=True)
            whole.unload().save_pretrained(str(draft / BASE))
        before, settings.base_model_name_or_path = settings.base_model_name_or_path, base
        module.save_pretrained(str(draft))
        settings.base_model_name_or_path = before
    return str(base)


def _shared(base: str, folder: Path) -> str:
    """The base as others will find it: a name on the hub, or the folder beside the adapters."""
    path = Path(base)
    return f"{folder.name}/{BASE}" if path == (folder / BASE).resolve() else path.name if path.is_absolute() else base


def _code(lines: list[str]) -> str:
    return "\n".join(["```python", *lines, "```", ""])


def _yaml(header: Mapping[str, Any]) -> str:
    """YAML; JSON's strings and lists are YAML too."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in header.items())


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c in " .,-()" else "-" for c in text)
