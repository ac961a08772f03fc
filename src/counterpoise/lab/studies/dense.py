"""The protocol that the studies of NYUv2 share, as the paper's authors ran it (appendix, docs/nyuv2.md)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..data.dense import DENSE
from ..engine import Recipe, Schedule, recipe, spec
from ..engine.config import freeze_options
from ..errors import UsageError
from .base import Condition, Study
from .paper_tables import Paper

SEEDS = (42, 43, 44)
MODEL = spec("segnet")
NYUV2_SCHEDULE = Schedule(
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
SHORT_SCHEDULE = replace(
    NYUV2_SCHEDULE, epochs=60, monitor="-total_loss"
)  # of the ablation and the sensitivity studies
HALF = freeze_options(subset="half")  # the fixed 398 images of these studies

METRICS = ("miou", "abs_rel", "rmse", "angle", "within_11", "total_loss")

# The gradient norm of all parameters, Kendall's s included, is clipped at 1. BPGS clips the network and θ at 10 each.
STATIC, UWSO = recipe("static"), recipe("uw-so")
KENDALL = recipe("kendall", joined=True)
NASH, NASH_AUTHORS = recipe("nash-mtl"), recipe("nash-authors")


def bpgs(*, network_clip: float = 10.0, **options: Any) -> Recipe:
    """Return BPGS as the authors trained it, with other options."""
    return recipe("bpgs", clip=10.0, network_clip=network_clip, **options)


BPGS = bpgs()


def bpgs_table(conditions: tuple[str, ...], numbers: Mapping[str, tuple[float, ...]]) -> Paper:
    """Return a table of BPGS with one column per condition and one row per metric, without standard deviations."""
    none = float("nan")
    return {
        metric: {"BPGS": {key: (mean, none) for key, mean in zip(conditions, row, strict=True)}}
        for metric, row in numbers.items()
    }


def nyuv2_condition(key: str, *methods: str, part: str = "", opt_in: bool = False, **options: Any) -> Condition:
    """Return a condition for some methods. Default: all."""
    return Condition(key, freeze_options(**options), part=part, only=methods, opt_in=opt_in)


SMALL_ROOMS = {"train": 32, "held_out": 8, "height": 48, "width": 64}
"""Few small images: with a narrow network a study takes minutes on a CPU."""


def on_synthetic_rooms(study: Study, *, small: bool = False) -> Study:
    """Return a study of NYUv2 on ray-cast synthetic rooms, which need no data.

    Args:
        study: The study.
        small: Whether to use few small images and a narrow network.

    Raises:
        UsageError: If the study does not use images.
    """
    if study.problem not in DENSE:
        raise UsageError(f"{study.name} does not use images: scenes are for the studies of NYUv2")
    if not small:
        return replace(study, problem="scenes").without_paper("on ray-cast scenes")
    conditions = tuple(replace(c, options=freeze_options(**dict(c.options), **SMALL_ROOMS)) for c in study.conditions)
    schedule = replace(study.schedule, epochs=2, warmup_steps=4)
    model = spec("segnet", width=8)
    changed = replace(study, problem="scenes", conditions=conditions, schedule=schedule, model=model)
    return changed.without_paper("quick form on small scenes")
