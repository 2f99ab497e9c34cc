"""`theory`: print the paper's theorems as numbers, for a tail index and a number of rounds."""

from __future__ import annotations

from typing import Any

from tardygrad.cli.output import show, show_json, show_table
from tardygrad.errors import Invalid
from tardygrad.runs.run import plural
from tardygrad.theory.bounds import bounds
from tardygrad.theory.delays import Constants, Sums, factors, sums_of_equal_delays
from tardygrad.theory.rates import PRESETS, Preset, preset
from tardygrad_command import commands

Row = dict[str, Any]
MAX_INTEGER = 10**18  # largest integer of an option


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
    if options.json:
        show_json({"tail": tail, "rounds": rounds, "methods": rates, "delay": delay, "bounds": explicit})
        return
    _show_rates(rates)
    if explicit:
        show(f"\nIf every delay is {delay} (M={buffer}, K={options.local_steps}, {plural(rounds, 'round')}):\n")
        _show_explicit(explicit)


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
