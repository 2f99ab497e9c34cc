"""`theory`: print the paper's theorems as numbers, what follows from them and what does not, and a schedule."""

from __future__ import annotations

from typing import Any

from tardygrad.cli import commands
from tardygrad.cli.output import show, show_json, show_table
from tardygrad.errors import Invalid
from tardygrad.runs.run import plural
from tardygrad.spec.toml import inline
from tardygrad.theory.bounds import bounds
from tardygrad.theory.delays import Constants, Sums, factors, sums_of_equal_delays
from tardygrad.theory.rates import PRESETS, Preset, preset

Row = dict[str, Any]
MAX_INTEGER = 10**18  # largest integer of an option
START = {"lr": 1.0, "local_lr": 0.1, "local_clip": 1.0, "clip": 0.1}  # of the schedule that is printed: values to tune
CONCLUSIONS = """
You may conclude: with these schedules, times constants of your own, the smallest expected squared gradient norm of T
rounds shrinks at least as fast as the bound's power of T. In the long run a larger power is the better guarantee.
Delays that grow no faster than their power of T do not change it.
You may not conclude: the loss after T rounds, the best learning rate, which method is the fastest on your task, or
that a run with larger delays fails. All constants are unknown and taken as 1, so numbers at T are orders of magnitude
at best. Real runs answer these questions: tardygrad sweep, tardygrad plan --search, tardygrad doctor RUN --try."""


def theory(options: commands.Theory) -> None:
    """Print the rates of the theorems and the explicit bounds of those that have some."""
    for name in ("rounds", "delay", "buffer", "local_steps"):
        if not 1 <= (value := getattr(options, name)) <= MAX_INTEGER:
            raise Invalid(f"--{name.replace('_', '-')} must be a whole number from 1 to 10^18, got {value}.")
    tail, rounds, delay, buffer = options.tail, options.rounds, options.delay, options.buffer
    chosen = PRESETS if options.method is None else (preset(options.method),)
    settings = {name: getattr(options, name) for name in ("local_steps", "local_clip", "local_lr", "clip")}
    given = {name: value for name, value in settings.items() if value is not None}
    sums = sums_of_equal_delays(delay, rounds=rounds, buffer=buffer)
    rates = [_rates(preset, tail, rounds) for preset in chosen]
    explicit = [row for preset in chosen for row in _explicit(preset, tail, sums, given)]
    best = max(chosen, key=lambda preset: (preset.rate(tail), preset.tolerance(tail)))
    table = _schedule(best, tail, buffer, options.local_steps)
    if options.json:
        facts = {"tail": tail, "rounds": rounds, "methods": rates, "delay": delay, "bounds": explicit}
        show_json(facts | {"schedule": table})
        return
    _show_rates(rates)
    if explicit:
        show(f"\nIf every delay is {delay} (M={buffer}, K={options.local_steps}, {plural(rounds, 'round')}):\n")
        _show_explicit(explicit)
    show(CONCLUSIONS)
    which = "" if options.method else ", which has the largest power (--method NAME prints another)"
    show(f"\nTo use the schedule of {best.name}{which}, paste this into a spec, and tune its numbers:\n")
    show(_toml(table, best, tail, rounds))


def _schedule(preset: Preset, tail: float, buffer: int, local_steps: int) -> Row:
    """The table [method] of a spec with the schedule of a theorem."""
    kind = "clip2" if "clip2" in preset.name else "sgdclip"
    name = preset.name.removeprefix("sd-").removeprefix("dc-").replace(kind, "theory", 1)
    numbers = {key: value for key, value in START.items() if key in preset.exponents(tail)}
    table: Row = {"kind": kind, "schedule": name, "tail": tail, **numbers}
    table |= {"downplay": True} if preset.name.startswith("sd-") else {}
    table |= {"compensate": True} if preset.name.startswith("dc-") else {}
    return table | {"mode": "client", "buffer": buffer, "local_steps": local_steps}


def _toml(table: Row, preset: Preset, tail: float, rounds: int) -> str:
    """The table in TOML, with the power of every number as a comment."""
    lines = ["[method]"]
    for key, value in table.items():
        power = float(preset.exponents(tail).get(key, 0))
        law = f"times t^{power:.3g}: {value * rounds**power:.3g} in round {rounds}" if power else "in all rounds"
        lines.append(f"{key} = {inline(value)}" + (f"  # {law}" if key in START else ""))
    return "\n".join(lines)


def _rates(preset: Preset, tail: float, rounds: int) -> Row:
    rate, tolerance = float(preset.rate(tail)), float(preset.tolerance(tail))
    return {
        "method": preset.name,
        "exponents": {name: float(power) for name, power in preset.exponents(tail).items()},
        "rate": rate,
        "bound": rounds**-rate,
        "tolerance": tolerance,
        "delay": rounds**tolerance,
        "source": preset.theorem.name,
    }


def _explicit(preset: Preset, tail: float, sums: Sums, given: dict[str, float]) -> list[Row]:
    """The explicit bounds of a method; settings that are not given take the values of its schedule at T."""
    scheduled = {name: sums.rounds ** float(power) for name, power in preset.exponents(tail).items() if name != "lr"}
    constants = Constants(tail=tail, **{**scheduled, **given})
    return [
        {"method": preset.name, "factor": factors(sums, constants)[preset.name] if bound.condition else None}
        | {"source": bound.source, "condition": bound.condition, "lr": bound.lr}
        | {"bound": bound.value, "terms": bound.terms}
        for bound in bounds(sums, constants)
        if bound.method == preset.name
    ]


def _show_rates(rows: list[Row]) -> None:
    cells = []
    for row in rows:
        powers = [row["exponents"].get(name) for name in ("lr", "local_lr", "local_clip", "clip")]
        shown = ["–" if power is None else f"t^{power:.3g}" if power else "1" for power in powers]
        bound = [f"T^-{row['rate']:.3g}", f"{row['bound']:.3g}"]
        late = [f"T^{row['tolerance']:.3g}", f"{row['delay']:.4g}"]
        cells.append((row["method"], *shown, *bound, *late, row["source"]))
    show_table(("method", "η", "η_ℓ", "u", "ũ", "bound", "at T", "delays", "at T", "source"), cells)


def _show_explicit(rows: list[Row]) -> None:
    cells = []
    for row in rows:
        name, value = max(row["terms"].items(), key=lambda term: term[1])
        state = "holds" if (row["factor"] or 0) <= 1 else f"violated by a factor of {row['factor']:.3g}"
        needs = f"condition of {row['condition']}: {state}" if row["condition"] else "nothing"
        numbers = (f"{row['lr']:.3g}", f"{row['bound']:.3g}", f"{name} {value:.3g}")
        cells.append((row["method"], row["source"], *numbers, needs))
    show_table(("method", "source", "η", "bound", "largest term", "needs"), cells)
