"""torch.compile for a task's module; where it fails, the module runs uncompiled, and a warning says why."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from tardygrad.errors import type_and_first_line


def compile_in_place(module: nn.Module) -> None:
    """Compile the module's calls; torch compiles at the first one, and again for inputs of other kinds."""
    module.compile()
    compiled: Any = module._compiled_call_impl
    failed = False

    def call(*inputs: Any, **named: Any) -> Any:
        nonlocal failed
        if not failed:
            from torch._dynamo.exc import TorchDynamoException  # slow to import, and only needed here

            try:
                return compiled(*inputs, **named)
            except TorchDynamoException as error:
                failed = True
                what = f"{type(module).__name__} cannot be compiled here and runs uncompiled"
                warnings.warn(f"{what} ({type_and_first_line(error)}).", stacklevel=2)
        return module._call_impl(*inputs, **named)  # type: ignore[no-untyped-call]

    module._compiled_call_impl = call
