"""The relatives as rows of cases.METHODS: the oracle's side, the library's call, and knobs that must be as they are.

A row's `M` and `K` are fixed; `odd` makes both odd; `more` adds to K; `unclipped` leaves local steps unclipped;
`summed` divides the rate by M + 1, as whoever adds up must. Other names are those of `Setting`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tardygrad as tg
from tests.golden.oracle import DN, Law
from tests.golden.relatives import DCASGD, Adam, Adaptive, Dylu, Halos, Momentum, Relative, Weight

LPS_LR = Law(0.9, -0.125)
_INNER_ADAM = Adam(b1=0.9, b2=0.999, eps=1e-8, decay=0.0, keep=False)
_ADAMW = {"betas": [0.8, 0.95], "eps": 0.05, "weight_decay": 0.1}
_KEPT = Adam(b1=0.8, b2=0.95, eps=0.05, decay=0.1, keep=True)
_SQUARES = {"beta2": 0.95, "eps": 0.3}  # a small τ makes much of rounding
_ADAPTIVE = {"beta1": 0.8, **_SQUARES}


def row(relative: Relative | Halos, make: Any, settings: dict[str, Any], **knobs: Any) -> dict[str, Any]:
    return {"relative": relative, "library": partial(make, **settings), **knobs}


def _tailopt() -> dict[str, dict[str, Any]]:
    raised, both = {"local_lower": True}, {"local_lower": True, "outer": True, "lower": True, "odd": True}
    biclip = {"inner": "biclip"}
    mean = {"b1": 0.0, "b2": 0.95, "tau": 0.3}
    adam = Adaptive("adam", 0.8, 0.95, 0.3)
    return {
        "avg-biclip": row(Relative("avg-biclip"), tg.tailopt, {"outer": "avg", **biclip}, **raised),
        "avg-l2clip": row(Relative("avg-l2clip"), tg.tailopt, {"outer": "avg", "inner": "l2clip"}, l2=True, **raised),
        "bi2clip": row(Relative("bi2clip"), tg.tailopt, {}, **both),
        "adagrad-biclip": row(
            Relative("adagrad-biclip", outer=Adaptive("adagrad", **mean)),
            tg.tailopt, {"outer": "adagrad", "eps": 0.3, **biclip}, **raised,
        ),
        "rmsprop-biclip": row(
            Relative("rmsprop-biclip", outer=Adaptive("rmsprop", **mean)),
            tg.tailopt, {"outer": "rmsprop", **_SQUARES, **biclip}, **raised,
        ),
        "adam-biclip": row(
            Relative("adam-biclip", outer=adam._replace(unbiased=True)),
            tg.tailopt, {"outer": "adam", "unbiased": True, **_ADAPTIVE, **biclip}, **raised,
        ),
        "adam-l2clip": row(
            Relative("adam-l2clip", outer=adam), tg.tailopt, {"outer": "adam", "inner": "l2clip", **_ADAPTIVE}, l2=True
        ),
        "adam2": row(
            Relative("adam2", adam=_INNER_ADAM, outer=adam),
            tg.tailopt, {"outer": "adam", "inner": "adam", **_ADAPTIVE}, unclipped=True,
        ),
    }  # fmt: skip


def _federated() -> dict[str, dict[str, Any]]:
    reddi = {"b1": 0.8, "b2": 0.95, "tau": 0.3, "v0": 0.3**2}
    return {
        "fedavg": row(Relative("fedavg"), tg.fedavg, {}, unclipped=True),
        "fedavg-adamw": row(
            Relative("fedavg-adamw", adam=_KEPT._replace(keep=False)),
            tg.fedavg, {"optimizer": "AdamW", "options": _ADAMW}, unclipped=True,
        ),
        "fedavgm": row(Relative("fedavgm", outer=Momentum(0.6)), tg.fedavgm, {"momentum": 0.6}),
        "fedadam": row(Relative("fedadam", outer=Adaptive("adam", **reddi)), tg.fedadam, _ADAPTIVE),
        "fedyogi": row(Relative("fedyogi", outer=Adaptive("yogi", **reddi)), tg.fedyogi, _ADAPTIVE),
        "diloco": row(
            Relative("diloco", adam=_KEPT, outer=Momentum(0.5, nesterov=True)),
            tg.diloco, {"momentum": 0.5, "options": _ADAMW, "norm": "l2"}, l2=True,
        ),
    }  # fmt: skip


def _fedbuff() -> dict[str, dict[str, Any]]:
    paper, half = Weight("poly"), tg.Polynomial()
    average, library_average = Weight("poly", average=2.0), tg.Polynomial(average=2.0)

    def buff(name: str, oracle: dict[str, Any], library: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {name: row(Relative(name, **oracle), tg.fedbuff, library, summed=oracle.get("over") == "one")}

    return {
        **buff("fedbuff", {"weight": paper}, {}),
        **buff("fedbuff-fedscale", {"weight": paper, "over": "weights"}, {"weight": half, "denominator": "weights"}),
        **buff("fedbuff-nvflare", {"weight": Weight("root", fresh=1)}, {"weight": tg.Root(fresh=1)}),
        **buff("fedbuff-flsim-average", {"weight": average}, {"weight": library_average}),
        **buff("fedbuff-flsim-sum", {"weight": average, "over": "one"},
               {"weight": library_average, "denominator": "one"}),
        **buff("fedbuff-appfl", {"weight": paper, "model": True}, {"toward": "model"}),
        **buff("fedbuff-fresh-1", {"weight": Weight("poly", fresh=1)}, {"weight": tg.Polynomial(fresh=1)}),
    }  # fmt: skip


def _fedasync() -> dict[str, dict[str, Any]]:
    hinge = {"slope": 2.0, "bound": 1.0}

    def pulled(name: str, oracle: dict[str, Any], library: dict[str, Any], **knobs: Any) -> dict[str, dict[str, Any]]:
        rho = library.get("rho", 0.0)
        return {name: row(Relative(name, model=True, **oracle), tg.fedasync, {**library, "rho": rho}, **knobs)}

    return {
        **pulled("fedasync", {"weight": Weight("poly"), "rho": 0.005}, {"rho": 0.005}, M=1),
        **pulled("fedasync-constant", {}, {"weight": None}),
        **pulled("fedasync-polynomial", {"weight": Weight("poly", a=1.5)}, {"weight": tg.Polynomial(exponent=1.5)}),
        **pulled("fedasync-hinge", {"weight": Weight("hinge", a=2.0, b=1.0)}, {"weight": tg.Hinge(**hinge)}),
        **pulled("fedasync-fedlab", {"weight": Weight("fedlab", a=2.0, b=1.0)},
                 {"weight": tg.Hinge(**hinge, jump=True)}),
        **pulled("fedasync-compound", {"weight": Weight("poly", a=0.1), "compound": True},
                 {"weight": tg.Polynomial(exponent=0.1), "mixing": "compound"}),
        **pulled("fedasync-proximal", {"weight": Weight("poly"), "rho": 0.7}, {"rho": 0.7}),
    }  # fmt: skip


def _dcasgd() -> dict[str, dict[str, Any]]:
    def kin(name: str, oracle: DCASGD, library: dict[str, Any], **knobs: Any) -> dict[str, dict[str, Any]]:
        return {name: row(Relative(name, dcasgd=oracle), tg.dcasgd, library, **knobs)}

    c, a = DCASGD(0.04), DCASGD(0.5, m=0.6, eps=0.01, adaptive=True)
    adaptive = {"adaptive": True, "strength": 0.5, "decay": 0.6, "eps": 0.01}
    return {
        **kin("dcasgd-c", c, {}, M=1, K=1),
        **kin("dcasgd-c-delta", c, {"source": "delta"}),
        **kin("dcasgd-c-steps", c._replace(steps=True), {"source": "steps"}),
        **kin("dcasgd-a-published", DCASGD(2.0, adaptive=True), {"adaptive": True}, M=1, K=1, local_lr=Law(0.02)),
        **kin("dcasgd-a", a, adaptive, M=1, K=1),
        **kin("dcasgd-a-delta", a, {**adaptive, "source": "delta"}),
        **kin("dcasgd-a-steps", a._replace(steps=True), {**adaptive, "source": "steps"}),
    }


def _dylu() -> dict[str, dict[str, Any]]:
    def dylu(name: str, oracle: Dylu, library: dict[str, Any], **knobs: Any) -> dict[str, dict[str, Any]]:
        relative = Relative(name, outer=DN(N=4, beta=0.5, c=0.1, dylu=False), dylu=oracle)
        return {name: row(relative, tg.dn_dylu, {"period": 4, "momentum": 0.5, "c": 0.1, **library}, M=1, **knobs)}

    return {
        **dylu("dylu-floor", Dylu(), {}),
        **dylu("dylu-ceil", Dylu(up=True), {"rounding": "ceil"}),
        **dylu("dylu-least-5", Dylu(least=5), {"least": 5}, more=4),
        **dylu("dylu-percentile", Dylu(percentile=60.0), {"percentile": 60.0}),
    }


def _halos(N: int, name: str, *, exchange: float, dealt: bool) -> Halos:
    first = max(N // 3, 1)
    blocks = tuple(range(first)), tuple(range(first, N))
    members = tuple(tuple(range(r, N, 2)) for r in range(2)) if dealt else blocks
    client = Relative("halos", adam=_KEPT, dylu=Dylu(up=True))
    lps, gps = DN(N=3, beta=0.5, c=0.0, dylu=False), DN(N=2, beta=0.4, c=0.0, dylu=False)
    return Halos(name, tuple(filter(None, members)), client, lps, LPS_LR, gps, 2, 0.25, exchange)


def _regional() -> dict[str, dict[str, Any]]:
    settings: dict[str, Any] = {
        "region_lr": tg.Power(*LPS_LR), "region_momentum": 0.5, "region_period": 3, "momentum": 0.4, "period": 2,
        "every": 2, "blend": 0.25, "options": _ADAMW,
    }  # fmt: skip

    def kin(name: str, *, exchange: float, dealt: bool) -> dict[str, dict[str, Any]]:
        def library(*, members: tuple[tuple[int, ...], ...], **shared: Any) -> tg.Method:
            regions = len(members) if dealt else tuple(map(len, members))
            return tg.halos(regions=regions, exchange=exchange, **settings, **shared)

        relative = partial(_halos, name=name, exchange=exchange, dealt=dealt)
        return {name: {"relative": relative, "library": library, "M": 1, "l2": True, "modes": ("client",)}}

    return {
        **kin("halos", exchange=0.0, dealt=True),
        **kin("halos-far", exchange=1.5, dealt=False),
        **kin("halos-very-far", exchange=4.0, dealt=True),
    }


RELATIVES: dict[str, dict[str, Any]] = (
    _tailopt() | _federated() | _fedbuff() | _fedasync() | _dcasgd() | _dylu() | _regional()
)
