"""Downloads from the Hugging Face hub and models of the transformers library; both need the extra `hf`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tardygrad.errors import Invalid

MISSING = "pretrained models need transformers, which is not installed. Use pip install -c constraints.txt -e '.[hf]'."


def download(repository: str, patterns: list[str], rule: str, fix: str, *, dataset: bool = False) -> Path:
    """Download files of a repository, unless huggingface_hub has them already, and return their folder.

    Args:
        repository: its name on the hub.
        patterns: of the files' names.
        rule: begins the error text: what needs the files.
        fix: ends the error text: what to do if they cannot be downloaded.
        dataset: a data set, not a model; for a model only the files at the top level are downloaded.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise Invalid(f"{rule}, which needs huggingface_hub. Use pip install -c constraints.txt -e '.[hf]'.") from error
    kind = {"repo_type": "dataset"} if dataset else {"ignore_patterns": ["*/*"]}
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns, **kind))
    except Exception as error:  # the network can fail in many ways
        raise Invalid(
            f"{rule}, which cannot be downloaded from huggingface.co ({type(error).__name__}). {fix}"
        ) from error


@contextmanager
def quiet() -> Iterator[Any]:
    """Import transformers, with its progress bars and its reports about new heads switched off."""
    try:
        import transformers
        from transformers.utils import logging
    except ImportError as error:
        raise Invalid(MISSING) from error
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
        return kind.from_pretrained(str(folder), local_files_only=True, **settings)
    except Exception as error:  # it can fail in many ways
        reason = str(error).strip().partition("\n")[0]
        raise Invalid(f"{rule} that {kind.__name__} can load, got {str(folder)!r}: {reason}") from error
