"""What the studies of NYUv2 share: the paper's protocol as its authors ran it (appendix; docs/nyuv2.md)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..data.dense import DENSE
from ..engine import Recipe, Schedule, recipe, spec
from ..engine.config import freeze_options
from .base import Condition, Paper, Study
from .claims import Claim, all_of, score

SEEDS = (42, 43, 44)
MODEL = spec("segnet")
PROTOCOL = Schedule(
    epochs=120,
    batch_size=8,
    drop_last=True,
    optimizer="adamw",
    lr=5e-4,
    weight_decay=1e-4,
    clip=1.0,
    warmup_steps=100,
    decay="cosine",
    lr_end=1e-6,
    precision="fp16",
    monitor="miou",
)
SHORT = replace(PROTOCOL, epochs=60, monitor="-total_loss")  # the ablation and the sensitivity studies
HALF = freeze_options(subset="half")  # the fixed 398 images of these

METRICS = ("miou", "abs_rel", "rmse", "angle", "within_11", "total_loss")

# The clip is 1 on the norm of all parameters, Kendall's s among them, but 10 under BPGS, and 10 on its θ apart.
STATIC, UWSO = recipe("static"), recipe("uw-so")
KENDALL = recipe("kendall", joined=True)
NASH, NASH_AUTHORS = recipe("nash-mtl"), recipe("nash-authors")


def bpgs(*, network_clip: float = 10.0, **options: Any) -> Recipe:
    return recipe("bpgs", clip=10.0, network_clip=network_clip, **options)


BPGS = bpgs()


def paper(condition: str | tuple[str, ...], metrics: tuple[str, ...], rows: Mapping[str, str]) -> Paper:
    """The paper's table as it stands there, a column for each metric; a number without ± has none.

    Several conditions are compared with the same table.
    """
    conditions = (condition,) if isinstance(condition, str) else condition
    found: dict[str, dict[str, dict[str, tuple[float, float]]]] = {metric: {} for metric in metrics}
    for method, row in rows.items():
        for metric, cell in zip(metrics, row.split(), strict=True):
            mean, _, sd = cell.partition("±")
            found[metric][method] = dict.fromkeys(conditions, (float(mean), float(sd or "nan")))
    return found


def bpgs_alone(conditions: tuple[str, ...], numbers: Mapping[str, tuple[float, ...]]) -> Paper:
    """A table of BPGS under several conditions, a row for each metric; the paper prints no ± there."""
    none = float("nan")
    return {
        metric: {"BPGS": {key: (mean, none) for key, mean in zip(conditions, row, strict=True)}}
        for metric, row in numbers.items()
    }


def row_claims(numbers: Paper, condition: str, where: str, methods: Mapping[str, Recipe]) -> tuple[Claim, ...]:
    """Each row of a table: our means within two of the paper's standard deviations of the paper's."""
    claims = []
    for method in methods:
        cells = {m: numbers[m][method][condition] for m in numbers if condition in numbers[m].get(method, {})}
        near = [score(method, condition, m).near(mean, 2 * sd) for m, (mean, sd) in cells.items() if sd > 0]
        if near:
            text = ", ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in cells.values() if sd > 0)
            claims.append(Claim(f"{method}: {text}", f"{where}, within two standard deviations", all_of(near)))
    return tuple(claims)


def only(key: str, *methods: str, part: str = "", asked: bool = False, **options: Any) -> Condition:
    """A table of some methods alone."""
    return Condition(key, freeze_options(**options), part=part, only=methods, asked=asked)


SMALL = {"train": 32, "held_out": 8, "height": 48, "width": 64}
"""Scenes for a look: with a narrow network a study takes minutes on a CPU."""


def on_scenes(study: Study, *, small: bool = False) -> Study:
    """A study of NYUv2 on ray-cast rooms instead, which need no data; `small`: a few, by a narrow network."""
    if study.problem not in DENSE:
        raise ValueError(f"{study.name} is not about images: scenes are for the studies of NYUv2")
    if not small:
        return replace(study, problem="scenes").unjudged("on ray-cast scenes")
    conditions = tuple(replace(c, options=freeze_options(**dict(c.options), **SMALL)) for c in study.conditions)
    schedule = replace(study.schedule, epochs=2, warmup_steps=4)
    model = spec("segnet", width=8)
    changed = replace(study, problem="scenes", conditions=conditions, schedule=schedule, model=model)
    return changed.unjudged("quick form on small scenes")
