"""The clipped steps as ordinary `torch.optim` optimizers, for training on one machine.

S. H. Lee, M. Zaheer, T. Li. Efficient Distributed Optimization under Heavy-Tailed Noise (TailOPT). 2025.

    x ← x − η · (sign(g_j) · min(max(|g_j|, d), u))_j       norm="coordinate"; zeros stay zero
    x ← x − η · g · min(max(‖g‖, d), u) / ‖g‖               norm="l2", over all parameters of a group

With d = 0 they are the local steps of SGDClip and Clip². The values equal those of `core.clipping`; there is no state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from tardygrad.core.clipping import Norm
from tardygrad.errors import Invalid, check_choice, check_number, is_number


class BiClip(Optimizer):
    """SGD on gradients clipped from above and from below.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: η, a number or a tensor.
        upper: u, the upper threshold, per coordinate or for the norm; inf switches it off.
        lower: d, the lower threshold; 0 switches it off.
        norm: "coordinate" clips each coordinate, "l2" clips the norm over all parameters of a group.
        weight_decay: λ; decoupled, x ← (1 − ηλ) x before the step.
        maximize: ascend instead of descend.
        foreach: process all tensors of a group at once: same bits, more memory. Default: if no tensor is on the CPU.
        fused: not supported; True raises an error.

    >>> x = torch.nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))
    >>> x.grad = torch.tensor([-3.0, 0.0, 0.1])
    >>> BiClip([x], lr=1.0, upper=1.0, lower=0.5).step()
    >>> x.tolist()
    [2.0, 1.0, 0.5]
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        upper: float,
        lower: float,
        *,
        norm: Norm = "coordinate",
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        if fused:
            raise RuntimeError("`fused` is not supported by BiClip and ClipSGD. Use `foreach=True`.")
        limits = {"upper": upper, "lower": lower, "norm": norm}
        options = {"weight_decay": weight_decay, "maximize": maximize, "foreach": foreach}
        super().__init__(params, {"lr": lr, **limits, **options})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; settings it leaves out take the defaults."""
        _check(self.defaults | param_group)
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; invalid settings raise `Invalid` before anything changes."""
        for group in state_dict["param_groups"]:
            if missing := self.defaults.keys() - group.keys():
                raise Invalid(f"a state of {type(self).__name__} must have `{min(missing)}` in every group, got none.")
            _check(group)
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step. The optional closure recomputes the gradients; its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [x for x in group["params"] if x.grad is not None and x.numel()]
            if any(x.grad.is_sparse for x in params):
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            if params:
                _step(params, group)
        return loss


class ClipSGD(BiClip):
    """SGD on clipped gradients: BiClip without a lower threshold.

    >>> x = torch.nn.Parameter(torch.zeros(2))
    >>> x.grad = torch.tensor([3.0, 4.0])
    >>> ClipSGD([x], lr=1.0, upper=1.0, norm="l2").step()
    >>> x.tolist()
    [-0.6000000238418579, -0.800000011920929]
    """

    def __init__(self, params: ParamsT, lr: float | Tensor, upper: float, **options: Any) -> None:
        super().__init__(params, lr, upper, 0.0, **options)


def _check(group: dict[str, Any]) -> None:
    """Raise `Invalid` for settings that break a rule."""
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.dim():
        raise Invalid(f"`lr` must be a number or a tensor without dimensions, got shape {tuple(lr.shape)}.")
    check_number("lr", lr.item() if isinstance(lr, Tensor) else lr)
    check_number("weight_decay", group["weight_decay"])
    lower, upper = group["lower"], group["upper"]
    if not (is_number(lower) and is_number(upper)) or not 0 <= lower <= upper or lower == math.inf:
        raise Invalid(f"the thresholds must be 0 <= lower <= upper, got {lower!r} and {upper!r}.")
    check_choice("norm", group["norm"], Norm)


def _step(params: list[Tensor], group: dict[str, Any]) -> None:
    grads = [-x.grad if group["maximize"] else x.grad for x in params if x.grad is not None]
    factors = _factors(grads, group["upper"], group["lower"]) if group["norm"] == "l2" else None
    lr, foreach = group["lr"], group["foreach"]
    if foreach is None:
        foreach = all(x.device.type != "cpu" for x in params)
    lists: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for i, (x, g) in enumerate(zip(params, grads, strict=True)):
        lists[(x.device, g.dtype) if foreach else i].append((x, g))
    for pairs in lists.values():
        xs, gs = [x for x, _ in pairs], [g for _, g in pairs]
        moves = _scaled(gs, *factors) if factors else _clipped(gs, group)
        if group["weight_decay"]:
            torch._foreach_mul_(xs, 1 - lr * group["weight_decay"])
        if isinstance(lr, Tensor):
            torch._foreach_sub_(xs, torch._foreach_mul(moves, lr))
        else:
            torch._foreach_add_(xs, moves, alpha=-lr)


def _clipped(grads: list[Tensor], group: dict[str, Any]) -> tuple[Tensor, ...]:
    """`tardygrad.core.clipping.clip` of every tensor."""
    largest = torch.finfo(grads[0].dtype).max
    upper = math.inf if group["upper"] > largest else group["upper"]
    if not group["lower"]:
        moves = torch._foreach_clamp_min(grads, -upper)
        torch._foreach_clamp_max_(moves, upper)
        return moves
    moves = torch._foreach_abs(grads)
    torch._foreach_clamp_min_(moves, min(group["lower"], largest))
    torch._foreach_clamp_max_(moves, upper)
    torch._foreach_mul_(moves, torch._foreach_sign(grads))
    return moves


def _factors(grads: list[Tensor], upper: float, lower: float) -> tuple[Tensor, Tensor]:
    """(divisor, factor): g / divisor · factor has the clipped norm; gradients within the thresholds keep their values.

    Both stay on the device, so there is no synchronisation. The divisor is 1, except for float64 gradients, whose
    squares may overflow: there it is their largest magnitude.
    """
    unit = torch.ones((), dtype=torch.float64, device=grads[0].device)
    if any(g.dtype == torch.float64 for g in grads):
        largest = torch.stack([g.abs().max().to(unit) for g in grads]).max()
        unit = torch.where((largest > 0) & largest.isfinite(), largest, unit)
    lengths = [torch.linalg.vector_norm(g.double() / unit.to(g.device)).to(unit.device) for g in grads]
    length = torch.linalg.vector_norm(torch.stack(lengths))
    wanted = (length * unit).clamp(lower, upper)
    return unit, torch.where((length == 0) | (length * unit == wanted), unit, wanted / length)


def _scaled(grads: list[Tensor], unit: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
    """`tardygrad.core.clipping.clip_l2`, in float64 because the factor may overflow float32."""
    moves = torch._foreach_div([g.double() for g in grads], unit.to(grads[0].device))
    torch._foreach_mul_(moves, factor.to(grads[0].device))
    return tuple(move.to(g.dtype) for move, g in zip(moves, grads, strict=True))
