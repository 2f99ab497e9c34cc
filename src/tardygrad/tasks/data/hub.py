"""The Hugging Face hub and the library transformers, which both come with the extra `hf`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tardygrad.errors import Invalid

MISSING = "pretrained models need transformers, which is not installed. Use pip install -c constraints.txt -e '.[hf]'."


def fetched(repository: str, patterns: list[str], rule: str, fix: str, *, dataset: bool = False) -> Path:
    """The folder where the hub's own package keeps files of a repository, once it has fetched them.

    Args:
        repository: its name on the hub.
        patterns: of the files' names.
        rule: what needs them, and what was given.
        fix: what to do if they cannot be had.
        dataset: whether it is no model; of a model only the files at the top are wanted.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise Invalid(f"{rule}, which needs huggingface_hub. Use pip install -c constraints.txt -e '.[hf]'.") from error
    kind = {"repo_type": "dataset"} if dataset else {"ignore_patterns": ["*/*"]}
    try:
        return Path(snapshot_download(repository, allow_patterns=patterns, **kind))
    except Exception as error:  # the network has many ways to fail
        raise Invalid(f"{rule}, which cannot be fetched from huggingface.co ({type(error).__name__}). {fix}") from error


@contextmanager
def quiet() -> Iterator[Any]:
    """The library transformers, without its bars and its reports of fresh heads."""
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


def loaded(kind: Any, folder: str | Path, rule: str, **settings: Any) -> Any:
    """What a class of transformers makes of a folder; `rule` says what it must be."""
    try:
        return kind.from_pretrained(str(folder), local_files_only=True, **settings)
    except Exception as error:  # there are many ways not to be one
        reason = str(error).strip().partition("\n")[0]
        raise Invalid(f"{rule} that {kind.__name__} can load, got {str(folder)!r}: {reason}") from error
