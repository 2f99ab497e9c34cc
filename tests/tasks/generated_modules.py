"""Modules made of random parts, trained by `TorchTask` and by a plain loop: the same bits, or one sentence of refusal.

`python -m tests.tasks.generated_modules --cases 2000` counts what came of them.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tardygrad as tg
from tardygrad.core.messages import Job

LR, CLIP, STEPS = 0.1, 0.05, 5
METHOD = tg.sgdclip(local_lr=LR, local_clip=CLIP, lr=1.0, buffer=1, local_steps=STEPS)
GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(24, 3, generator=GENERATOR), torch.arange(24) % 2

Part = tuple[Callable[["Generated"], None], Callable[["Generated", Tensor], Tensor]]
"""What a part adds to a module when it is made, and what it does in a pass, before the layers."""

PARTS: dict[str, Callable[[int], Part]] = {}
"""By name; the number is the pass at which something begins, 1 to 6."""


SILENT = "another"
ERRORS = RuntimeError, TypeError, ValueError, AttributeError, LookupError


class Generated(nn.Module):
    """Three layers, and parts that do something before them in each pass."""

    def __init__(self, norm: str, parts: list[Part]) -> None:
        super().__init__()
        self.square, self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 4), nn.Linear(4, 2)
        norms = {"batch": nn.BatchNorm1d, "mean": lambda d: nn.BatchNorm1d(d, momentum=None), "layer": nn.LayerNorm,
                 "group": lambda d: nn.GroupNorm(2, d), "none": lambda d: nn.Identity()}  # fmt: skip
        self.norm = norms[norm](4)
        self.steps = tuple(step for _, step in parts)
        for setup, _ in parts:
            setup(self)

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(self, x)
        y: Tensor = self.second(torch.tanh(self.norm(self.first(self.square(x)))))
        return y


def nothing(m: Generated) -> None:
    """For parts that only do something in passes."""


def same(m: Generated, x: Tensor) -> Tensor:
    """For parts that only do something when the module is made."""
    return x


def add(name: str, setup: Callable[[Any], Any] = nothing, step: Callable[[Any, Tensor], Tensor] = same) -> None:
    PARTS[name] = lambda n: (setup, step)


def passes(name: str, change: Callable[[Any], Any]) -> None:
    """A part that changes something in each pass, and one that does it from the n-th on, counted in a buffer."""

    def each(m: Any, x: Tensor) -> Tensor:
        change(m)
        return x

    def late(n: int) -> Part:
        def setup(m: Any) -> None:
            m.register_buffer(f"count{n}", torch.zeros((), dtype=torch.int64))

        def step(m: Any, x: Tensor) -> Tensor:
            getattr(m, f"count{n}").add_(1)
            if getattr(m, f"count{n}") >= n:
                change(m)
            return x

        return setup, step

    add(name, nothing, each)
    PARTS[f"{name}, late"] = late


# -- parameters that get other memory, and those that are changed in place
def renormed(w: Tensor) -> Tensor:
    return torch.renorm(w, 2, 0, 0.3)


def assign(m: Any, values: Callable[[Tensor], Tensor]) -> None:
    m.first.weight.data = values(m.first.weight.data)


def in_place(m: Any, change: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        change(m)


def transpose(m: Any) -> None:
    m.square.weight.data = m.square.weight.data.t()


passes("weight.data = renorm", lambda m: assign(m, renormed))
passes("weight.data = clone", lambda m: assign(m, Tensor.clone))
passes("weight.data = decayed", lambda m: assign(m, lambda w: w * 0.9))
passes("weight.data = transposed", transpose)
passes("weight.set_", lambda m: in_place(m, lambda m: m.first.weight.set_(m.first.weight.detach() * 0.95)))
passes("to(float64).to(float32)", lambda m: m.first.to(torch.float64).to(torch.float32))
passes("_apply(clone)", lambda m: m.first._apply(torch.clone))
passes("whole _apply(clone)", lambda m: m._apply(torch.clone))
passes("weight.data.copy_", lambda m: m.first.weight.data.copy_(renormed(m.first.weight.data)))
passes("weight.mul_", lambda m: in_place(m, lambda m: m.first.weight.mul_(0.97)))
passes("weight.data.clamp_", lambda m: m.first.weight.data.clamp_(-0.3, 0.3))
passes("load_state_dict", lambda m: m.first.load_state_dict({k: v * 0.9 for k, v in m.first.state_dict().items()}))
passes("new Parameter", lambda m: setattr(m.first, "weight", nn.Parameter(m.first.weight.detach().clone())))
passes("requires_grad_(False)", lambda m: m.first.weight.requires_grad_(False))
passes("zero_grad", lambda m: m.zero_grad())
passes("zero_grad in place", lambda m: m.zero_grad(set_to_none=False))
passes("grad = None", lambda m: setattr(m.first.weight, "grad", None))
passes("two with one memory", lambda m: setattr(m.square.bias, "data", m.square.weight.data[0]))

# -- what shares memory with a parameter or a buffer
SHARED: dict[str, Callable[[Any], Any]] = {
    "weight.data": lambda m: m.first.weight.data, "weight.detach()": lambda m: m.first.weight.detach(),
    "a row": lambda m: m.first.weight.data[1], "a column": lambda m: m.first.weight.data[:, 1],
    "numpy()": lambda m: m.first.weight.data.numpy(), "a buffer's": lambda m: m.shift.data,
}  # fmt: skip
HOLDERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "attribute": (lambda v: v, lambda h: h),
    "list": (lambda v: [0, v], lambda h: h[1]),
    "dict": (lambda v: {"a": {"b": v}}, lambda h: h["a"]["b"]),
    "object": (lambda v: SimpleNamespace(v=v), lambda h: h.v),
    "function": (lambda v: lambda: v, lambda h: h()),
}


def mean(value: Any) -> Tensor:
    return value.mean() if isinstance(value, Tensor) else torch.tensor(value.mean())


def sharing(of: str, where: str) -> Part:
    hold, get = HOLDERS[where]

    def setup(m: Any) -> None:
        if not hasattr(m, "shift"):
            m.register_buffer("shift", torch.ones(3))
        m.alias = hold(SHARED[of](m))

    def step(m: Any, x: Tensor) -> Tensor:
        if of == "a buffer's" and m.training:
            m.shift.mul_(0.9)
        return x + mean(get(m.alias))

    return setup, step


for of_ in SHARED:
    for where_ in HOLDERS:
        PARTS[f"{of_} in a {where_}"] = lambda n, of=of_, where=where_: sharing(of, where)
for persistent_ in (True, False):
    add(
        f"a parameter's memory as a buffer, persistent={persistent_}",
        lambda m, p=persistent_: m.register_buffer("w0", m.first.weight.data, persistent=p),
        lambda m, x: x + m.w0.mean(),
    )
add("a tied weight", lambda m: setattr(m, "tied", m.square), lambda m, x: m.tied(x))
add(
    "a tied parameter",
    lambda m: (setattr(m, "other", nn.Linear(3, 3)), setattr(m.other, "weight", m.square.weight)),
    lambda m, x: m.other(x),
)
add("a tied buffer", lambda m: (m.register_buffer("one", torch.ones(3)), m.register_buffer("two", m.one)),
    lambda m, x: (m.one.mul_(0.9) if m.training else 0, x + m.two)[1])  # fmt: skip


def untie(m: Any, x: Tensor) -> Tensor:
    if m.training:
        m.one = m.one * 0.9
    return x + m.two


add("a tied buffer that is replaced",
    lambda m: (m.register_buffer("one", torch.ones(3)), m.register_buffer("two", m.one)), untie)  # fmt: skip
add("memory shared from a pass on", nothing, lambda m, x: _held(m, x, lambda: m.first.weight.data))


def _held(m: Any, x: Tensor, value: Callable[[], Any]) -> Tensor:
    if not hasattr(m, "held"):
        m.held = value()
    return x + m.held.mean()


# -- buffers
def buffer(name: str, change: Callable[[Any, Tensor], Any], first: Callable[[], Tensor] = lambda: torch.zeros(3),
           persistent: bool = True) -> None:  # fmt: skip
    def step(m: Any, x: Tensor) -> Tensor:
        if m.training:
            change(m, x)
        return x + m.stat.float()

    add(name, lambda m: m.register_buffer("stat", first(), persistent=persistent), step)


def remember(m: Any, x: Tensor) -> None:
    m.previous = m.stat
    m.stat = m.stat + 0.1 * x.mean(0)
    if m.previous.sum() > 0.01:
        m.stat = m.stat - m.previous


buffer("a buffer changed in place", lambda m, x: m.stat.mul_(0.9).add_(x.mean(0)))
buffer("a buffer replaced", lambda m, x: setattr(m, "stat", 0.9 * m.stat + x.mean(0)))
buffer("a buffer's data assigned", lambda m, x: setattr(m.stat, "data", m.stat + 0.1))
buffer("a buffer replaced, its last one held", remember)
buffer("an integer buffer", lambda m, x: m.stat.add_(1), lambda: torch.zeros((), dtype=torch.int32))
buffer("a flag", lambda m, x: m.stat.logical_not_(), lambda: torch.tensor(True))
buffer("a narrow buffer", lambda m, x: m.stat.add_(0.5), lambda: torch.zeros(3, dtype=torch.float16))
buffer("a buffer replaced by one of another shape", lambda m, x: setattr(m, "stat", torch.zeros(1, 3)))
CHANGES: dict[str, Callable[[Any, Tensor], Any]] = {
    "in place": lambda m, x: m.stat.add_(0.1),
    "by data": lambda m, x: m.stat.data.add_(0.1),
    "by replacing it": lambda m, x: setattr(m, "stat", m.stat + 0.1),
    "not": lambda m, x: None,
}
for how_, change_ in CHANGES.items():
    buffer(f"a constant changed {how_}", change_, lambda: torch.ones(3), persistent=False)


# -- attributes
def attribute(name: str, first: Callable[[], Any], use: Callable[[Any, Tensor, int], Any]) -> None:
    def make(n: int) -> Part:
        return (lambda m: setattr(m, "note", first())), lambda m, x: x * (use(m, x, n) if m.training else 1.0)

    PARTS[name] = make


def counted(m: Any, x: Tensor, n: int) -> float:
    m.note += 1
    return 1.0 if m.note < n else 0.5


def running(m: Any, x: Tensor, n: int) -> Tensor:
    m.note = 0.9 * m.note + 0.1 * x.detach().mean()
    return 1 + m.note


class Slots:
    """An object without a `__dict__`."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0.0


class Plain:
    """An object with a `__dict__`."""

    def __init__(self) -> None:
        self.n, self.more = 0.0, [0.0]


def grown(m: Any, n: float = 1.0) -> float:
    m.note.n += n
    return float(m.note.n)


def appended(m: Any, x: Tensor, n: int) -> float:
    m.note.append(0.1)
    return float(sum(m.note)) if len(m.note) >= n else 1.0


def keyed_count(m: Any, x: Tensor, n: int) -> float:
    m.note["a"]["n"] += 1
    return 1.0 if m.note["a"]["n"] < n else 0.5


def nested(m: Any, x: Tensor, n: int) -> float:
    m.note.more.append(0.1)
    return 1.0 if len(m.note.more) < n else 0.5


def array(m: Any, x: Tensor, n: int) -> float:
    m.note += 1
    return 1.0 if m.note[0] < n else 0.5


attribute("a counter", lambda: 0, counted)
attribute("a running tensor", lambda: torch.zeros(()), running)
attribute("a tensor changed in place", lambda: torch.zeros(()), lambda m, x, n: m.note.add_(0.1) + 1)
attribute("a tensor changed by data", lambda: torch.zeros(()), lambda m, x, n: m.note.data.add_(0.1).clone() + 1)
attribute("a list", lambda: [1.0], appended)
attribute("a deque", lambda: deque([1.0], maxlen=4), appended)
attribute("a dict", lambda: {"a": {"n": 0}}, keyed_count)
attribute("a set", set, lambda m, x, n: (m.note.add(len(m.note)), 1.0 if len(m.note) < n else 0.5)[1])
attribute("an object", Plain, lambda m, x, n: 1.0 if grown(m) < n else 0.5)
attribute("a list in an object", Plain, nested)
attribute("an object with slots", Slots, lambda m, x, n: 1.0 if grown(m) < n else 0.5)
attribute("an array", lambda: np.zeros(1), array)
attribute("NumPy's generator", lambda: np.random.default_rng(0), lambda m, x, n: float(m.note.random()))
attribute(
    "torch's generator", lambda: torch.Generator().manual_seed(0), lambda m, x, n: torch.rand(1, generator=m.note)
)
attribute("Python's generator", lambda: random.Random(0), lambda m, x, n: m.note.random())
attribute("a cache", lambda: None, lambda m, x, n: (setattr(m, "note", x.norm().detach()), 1.0)[1])
add("a new attribute", nothing, lambda m, x: (setattr(m, "last", getattr(m, "last", 0) + 1), x * 0.9**m.last)[1])
passes("a submodule's mode", lambda m: m.norm.eval())
passes("a new submodule", lambda m: m.add_module("square", nn.Identity()))
passes("a late buffer", lambda m: (hasattr(m, "b") or m.register_buffer("b", torch.ones(4)), m.norm.bias.data.add_(m.b)
                                   if getattr(m.norm, "bias", None) is not None else 0, m.b.add_(0.1)))  # fmt: skip


# -- hooks
def scale(module: Any, args: Any, output: Tensor) -> Tensor:
    return output * 0.9


add("a hook", lambda m: m.first.register_forward_hook(scale))
add("a hook on the input", lambda m: m.first.register_forward_pre_hook(lambda module, args: (args[0] * 1.1,)))
add("a hook over the module", lambda m: m.first.register_forward_hook(lambda module, args, y: y + m.square.bias.sum()))
add("a hook over memory", lambda m: _hook_over(m, m.square.bias.data))
add("a hook on gradients", lambda m: m.first.register_full_backward_hook(lambda module, gi, go: (gi[0] * 0.5,)))
passes("a hook left by a pass", lambda m: m.first.register_forward_hook(scale))


def _hook_over(m: Any, held: Tensor) -> None:
    m.first.register_forward_hook(lambda module, args, y: y + held.sum())


# -- frozen parts, random numbers, reparametrizations
def frozen(name: str, change: Callable[[Any], Any]) -> None:
    def setup(m: Any) -> None:
        m.base = nn.Linear(3, 3).requires_grad_(False)

    def make(n: int) -> Part:
        def step(m: Any, x: Tensor) -> Tensor:
            if m.training:
                in_place(m, change)
            return x + m.base(x)

        return setup, step

    PARTS[name] = make


frozen("a frozen layer", lambda m: None)
frozen("a frozen layer changed in place", lambda m: m.base.weight.mul_(0.9))
frozen("a frozen layer changed by data", lambda m: m.base.weight.data.mul_(0.9))
frozen("a frozen layer assigned", lambda m: setattr(m.base.weight, "data", m.base.weight.data * 0.9))
add("dropout", lambda m: setattr(m, "drop", nn.Dropout(0.2)), lambda m, x: m.drop(x))
add("hidden dropout", nothing, lambda m, x: F.dropout(x, 0.2, m.training))
add("NumPy's random numbers", nothing, lambda m, x: x * float(np.random.rand()) if m.training else x)


def late_draw(n: int) -> Part:
    def setup(m: Any) -> None:
        m.register_buffer("drawn", torch.zeros((), dtype=torch.int64))

    def step(m: Any, x: Tensor) -> Tensor:
        if m.training:
            m.drawn += 1
        return x * torch.rand(3) if m.training and m.drawn >= n else x

    return setup, step


PARTS["random numbers from a pass on"] = late_draw
add("orthogonal", lambda m: nn.utils.parametrizations.orthogonal(m.square))
add("weight norm", lambda m: nn.utils.parametrizations.weight_norm(m.square))
add("spectral norm", lambda m: nn.utils.parametrizations.spectral_norm(m.square))
add("old spectral norm", lambda m: nn.utils.spectral_norm(m.square))


class Centred(nn.Module):
    """A loss with a buffer and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(2))
        self.calls = 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.calls += 1
            self.centre += 0.1 * output.detach().mean(0)
        return F.cross_entropy(output - self.centre, target) * (1.0 if self.calls < 3 else 0.5)


LOSSES: dict[str, Callable[[], Any]] = {
    "cross-entropy": lambda: F.cross_entropy,
    "with state": Centred,
    "of (module, batch)": lambda: lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]),
}

Case = tuple[int, str, str, list[tuple[str, int]]]
"""(seed, norm, loss, parts with their numbers)"""


def case(seed: int) -> Case:
    """The case of a number."""
    rng = random.Random(seed)
    names = rng.sample(sorted(PARTS), rng.choice([1, 1, 1, 2, 2, 3]))
    norm = rng.choice(["batch", "mean", "layer", "group", "none"])
    loss = rng.choice(["cross-entropy"] * 4 + sorted(LOSSES))
    return seed, norm, loss, [(name, rng.randint(1, 6)) for name in names]


def made(case: Case) -> tuple[Generated, Any]:
    """The module and the loss of a case: the same every time."""
    torch.manual_seed(case[0])
    return Generated(case[1], [PARTS[name](n) for name, n in case[3]]), LOSSES[case[2]]()


def load(module: nn.Module, x: Tensor, buffers: Any) -> list[nn.Parameter]:
    """Give a module the parameters and buffers of a job, in place."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    names = module.state_dict().keys()
    stored = [b for n, b in module.named_buffers() if n in names]
    groups = [b for b in stored if b.is_floating_point()], [b for b in stored if not b.is_floating_point()]
    with torch.no_grad():
        for tensors, flat in zip((parameters, *groups), (x, *(buffers or ())), strict=False):
            for tensor, values in zip(tensors, torch.split(flat, [t.numel() for t in tensors]), strict=True):
                tensor.copy_(values.view(tensor.shape))
    return parameters


def flat(tensors: Iterator[Any] | list[Any], dtype: torch.dtype) -> Tensor:
    return torch.cat([torch.zeros(0, dtype=dtype), *(t.detach().reshape(-1).to(dtype) for t in tensors)])


def plain(case: Case, job: Job, batches: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
    """What a plain loop over a new module makes of a job: x, float buffers, other buffers."""
    module, loss = made(case)
    parameters = load(module, job.x, job.module_buffers)  # type: ignore[arg-type]
    names = module.state_dict().keys()
    paths = [name.rpartition(".") for name, _ in module.named_buffers() if name in names]
    places = [(module.get_submodule(path), leaf) for path, _, leaf in paths]
    module.train()
    for batch in batches:
        for p in parameters:
            p.grad = None
        torch.manual_seed(batch.key)
        random.seed(batch.key)
        np.random.seed(batch.key % 2**32)
        inputs, target = batch.data[0]
        value = loss(module, batch.data[0]) if "module" in case[2] else loss(module(inputs), target)
        value.backward()
        with torch.no_grad():
            for p in parameters:
                if p.grad is not None:
                    p -= p.grad.clamp(-CLIP, CLIP) * LR
    stored = [owner._buffers[leaf] for owner, leaf in places]
    floats, ints = [b for b in stored if b.is_floating_point()], [b for b in stored if not b.is_floating_point()]
    return flat(list(parameters), torch.float32), flat(floats, torch.float32), flat(ints, torch.int64)


def test_loss(case: Case, x: Tensor, buffers: Any) -> float:
    module, loss = made(case)
    load(module, x, buffers)
    with torch.no_grad():
        module.eval()
        torch.manual_seed(0)
        return float(loss(module, DATA) if "module" in case[2] else loss(module(DATA[0]), DATA[1]))


test_loss.__test__ = False  # type: ignore[attr-defined]


def differs(a: Tensor, b: Tensor) -> bool:
    return a.shape != b.shape or not torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def outcome(case: Case, jobs: int = 3) -> str:
    """equal, refused, both fail (the plain loop too), or what differs silently."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _outcome(case, jobs)


def _outcome(case: Case, jobs: int) -> str:
    try:
        module, loss = made(case)
    except ValueError:  # parts that cannot be together
        return "both fail"
    try:
        task = tg.TorchTask(module, loss=loss, data=tg.shard(DATA, clients=1), test=DATA, batch_size=8)
        x, buffers = task.init(0), task.init_module_buffers()
        for serial in range(jobs):
            job = Job(0, serial, 0, x.clone(), STEPS, None, 0, buffers.clone() if buffers else None)
            batches = list(task.batches(job))
            try:
                expected = plain(case, job, batches)
            except ERRORS:
                return "both fail"
            update = tg.work(job, task, METHOD)
            found = (*(update.module_buffers or (torch.zeros(0), torch.zeros(0, dtype=torch.int64))),)
            for name, a, b in zip(("x", "floats", "ints"), (job.x + update.delta, *found), expected, strict=True):
                # x = x_s + (x_K - x_s) is rounded twice
                if name == "x" and not torch.allclose(a, b, rtol=1e-6, atol=1e-7, equal_nan=True):
                    return f"another {name}"
                if name == "x" and differs(update.delta, b - job.x):  # type: ignore[operator]
                    return f"another {name} in its last bits"
                if name != "x" and differs(a, b):
                    return f"another {name}"
            x, buffers = job.x + update.delta, update.module_buffers  # type: ignore[operator,assignment]
            before = x.clone()
            value = task.evaluate(x, buffers)["loss"]
            if differs(before, x):
                return "another x after an evaluation"
            if "random" not in str(case[3]) and abs(value - test_loss(case, x, buffers)) > 1e-5 * (1 + abs(value)):
                return "another test loss"
    except (tg.Invalid, tg.WorkFailed):
        return "refused"
    except ERRORS as error:
        return f"raises {type(error).__name__}"
    return "equal"


def smallest(case: Case, jobs: int = 3) -> Case:
    """The case without the parts that its difference does not need."""
    seed, norm, loss, parts = case
    for i in reversed(range(len(parts))):
        fewer = seed, norm, loss, parts[:i] + parts[i + 1 :]
        if outcome(fewer, jobs).startswith(SILENT):
            return smallest(fewer, jobs)
    simpler = (seed, "none", "cross-entropy", parts)
    return simpler if outcome(simpler, jobs).startswith(SILENT) else case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    counts, kinds = Counter[str](), Counter[str]()
    for seed in range(given.first, given.first + given.cases):
        result = outcome(case(seed))
        counts[result] += 1
        if result.startswith(SILENT):
            found = smallest(case(seed))
            kinds[f"{', '.join(sorted(name for name, _ in found[3]))} ({found[2]}): {outcome(found)}"] += 1
    print("\n".join(f"{n:6} {name}" for name, n in counts.most_common()))
    for name, n in kinds.most_common():
        print(f"{n:6} silent: {name}")


if __name__ == "__main__":
    main()
