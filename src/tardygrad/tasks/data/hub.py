"""Downloads from the Hugging Face hub and models of the transformers library; both need the extra `hf`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tardygrad.errors import Invalid
from tardygrad.tasks.data.files import Key, optional

Attention = Literal["eager", "sdpa"]
"""How transformers computes attention: by matrix products, or by torch's scaled_dot_product_attention."""

NEED = "pretrained models need transformers"
WORDS = (".json", ".txt", ".model")  # configuration and vocabulary


def download(repository: str, patterns: list[str], rule: str, *, dataset: bool = False) -> Path:
    """Download files of a repository, unless huggingface_hub has them already, and return their folder.

    Args:
        repository: its name on the hub.
        patterns: of the files' names.
        rule: begins the error text: what needs the files.
        dataset: a data set, not a model; for a model only the files at the top level are downloaded.
    """
    hub = optional("huggingface_hub", f"{rule}, which needs huggingface_hub", "hf")
    kind = {"repo_type": "dataset"} if dataset else {"ignore_patterns": ["*/*"]}
    try:
        return Path(hub.snapshot_download(repository, allow_patterns=patterns, **kind))
    except Exception as error:  # the network can fail in many ways
        reason = f"cannot be downloaded from huggingface.co ({type(error).__name__})"
        raise Invalid(f"{rule}, which {reason}. Download it elsewhere and give its folder.") from error


def find_model(setting: str, name: str, *, on_hub: bool = True) -> Path:
    """The folder of a model: `name` itself, or a download if it is a name on the hub; `setting` is for error texts."""
    folder, either = Path(name), ", or OWNER/NAME on the hub" if on_hub else ""
    rule = f"`{setting}` must be a folder with config.json and model.safetensors{either}, got {name!r}"
    if not folder.is_dir():
        if not on_hub or not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name):
            raise Invalid(f"{rule}, which is not a folder.")
        folder = download(name, ["*.json", "*.txt", "*.model", "*.safetensors"], rule)
    for file in ("config.json", "*.safetensors"):
        if not any(folder.glob(file)):
            raise Invalid(f"{rule} without {file}.")
    return folder


@contextmanager
def quiet() -> Iterator[Any]:
    """Import transformers, with its progress bars and its reports about new heads switched off."""
    transformers = optional("transformers", NEED, "hf")
    logging = transformers.utils.logging
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def load(kind: Any, folder: str | Path, rule: str, **settings: Any) -> Any:
    """`kind.from_pretrained(folder)`; `rule` begins the error text."""
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False, **settings)
    except Exception as error:  # it can fail in many ways
        reason = str(error).strip().partition("\n")[0]
        raise Invalid(f"{rule} that {kind.__name__} can load, got {str(folder)!r}: {reason}") from error


def model_files(folder: Path, suffixes: tuple[str, ...]) -> list[Key]:
    """A model's files, and the version of transformers."""
    optional("transformers", NEED, "hf")
    return [*sorted(file for file in folder.iterdir() if file.suffix in suffixes), version("transformers")]
