"""The leaderboard: mean ranks and scores relative to the plain sum in each world, computed from recorded scores."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..studies import STUDIES, Study
from .intervals import SEEDS_OF_AN_INTERVAL, seed_interval
from .leaderboard_worlds import PLAIN_SUM, TUNED_SUM, WORLDS, World, method_labels
from .run_scores import rank_by_score

CHOICE = 3
"""Seeds at which rates are chosen, in studies that ran all rates at all seeds. These seeds are not counted."""

SMALLEST = 1e-12
"""The smallest error that is compared by its logarithm."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over seeds. With fewer than three seeds, both bounds are the value."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """A method in a world. Comparisons are paired: both methods on the same problems and seeds."""

    method: str
    rank: Estimate | None  # mean rank over problems, metrics and seeds; None if some runs were not made
    against_sum: Estimate | None  # relative to the plain sum, in the unit of the world
    against_tuned: Estimate | None  # relative to the best hand-tuned sum
    runs: int  # compared with the plain sum
    diverged: int  # runs without a finite score
    seeds: int
    problems: int


@dataclass(frozen=True)
class WorldStandings:
    """The methods of a world, best first. Those without a rank come last."""

    world: World
    standings: tuple[Standing, ...]
    scores: pd.DataFrame  # a row per problem, metric and seed, a column per method
    seeds: tuple[int, ...]
    problems: tuple[str, ...]
    checks: tuple["WorldStandings", ...] = ()  # on the same problems, with a setting that removes a confound
    _compared: dict[tuple[str, str, str], Estimate | None] = field(
        init=False, default_factory=dict, repr=False, compare=False
    )

    @property
    def ranked(self) -> list[Standing]:
        return [standing for standing in self.standings if standing.rank is not None]

    def find(self, method: str) -> Standing | None:
        return next((standing for standing in self.standings if standing.method == method), None)

    def without(self, problem: str) -> "WorldStandings":
        """Return the same methods, with comparisons on all problems except one."""
        rest = self.scores[self.scores.index.get_level_values("problem") != problem]
        return replace(self, scores=rest, problems=tuple(p for p in self.problems if p != problem))

    def compare(self, method: str, other: str = PLAIN_SUM, problem: str = "") -> Estimate | None:
        """Return a method relative to another one on their common runs; None if there are none.

        Args:
            method: The method.
            other: The other method. Default: the plain sum.
            problem: The problem on which they are compared. Default: all problems.
        """
        if method not in self.scores or other not in self.scores:
            return None
        key = method, other, problem
        if key not in self._compared:
            scores = self.scores.xs(problem, level="problem", drop_level=False) if problem else self.scores
            self._compared[key] = compare_scores(self.world, scores[method], scores[other])
        return self._compared[key]


def leaderboard(frames: Mapping[str, pd.DataFrame]) -> list[WorldStandings]:
    """Return the standings of each world with recorded scores of the plain sum and of another method.

    Args:
        frames: The scores of all runs of each study, at all learning rates, by the name of the study.
    """
    return _recorded_standings(WORLDS, frames)


def _recorded_standings(worlds: Sequence[World], frames: Mapping[str, pd.DataFrame]) -> list[WorldStandings]:
    found = []
    for world in worlds:
        parts = [_long(STUDIES[name], frames[name], world) for name in world.studies if len(frames.get(name, ()))]
        runs = pd.concat(parts) if parts else pd.DataFrame({"method": []})
        if PLAIN_SUM in set(runs["method"]) and runs["method"].nunique() > 1:
            checks = tuple(_recorded_standings(world.checks, frames))
            found.append(replace(_standings(world, runs), checks=checks))
    return found


def at_chosen_rates(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of each method at its best rate, without the seeds at which the rate is chosen."""
    if not study.rates:
        return frame
    choice = choice_seeds(study)
    ranked = rank_by_score(frame[frame["seed"].isin(choice)], ["method", "lr"]).reset_index()
    best = ranked.drop_duplicates("method").set_index("method")["lr"]
    return frame[(frame["lr"] == frame["method"].map(best)) & ~frame["seed"].isin(choice)]


def choice_seeds(study: Study) -> tuple[int, ...]:
    """Return the seeds at which a study's rates are chosen."""
    return study.rate_seeds or study.seeds[:CHOICE]


def _long(study: Study, every: pd.DataFrame, world: World) -> pd.DataFrame:
    """Return a row per method, problem, metric and seed, with the hand-tuned sum as a method of its own."""
    conditions = world.conditions or tuple(c.key for c in study.conditions if not c.opt_in)
    if study.rates:  # other conditions take no part in the choice
        every = every[every["condition"].isin(conditions)]
    labels, frame = method_labels(study), at_chosen_rates(study, every)
    metrics = [metric for metric in world.metrics if metric in frame]
    frame = frame[["method", "condition", "seed", *metrics]]
    frame = frame.assign(method=frame["method"].map(labels)).dropna(subset=["method"])
    if world.tuned_methods:
        sums = every.assign(method=every["method"].map(labels))
        frame = pd.concat([frame, _best_fixed_sum(sums, frame, world, choice_seeds(study))])
    elif study.name in world.tuned_studies:
        frame = pd.concat([frame, _sum_without_factors(frame, world)])
    frame = frame[frame["condition"].isin(conditions)]
    several = len(world.metrics) == 1 and frame["condition"].nunique() > 1
    frame = frame.assign(problem=study.title + (": " + frame["condition"] if several else ""))
    kept = frame[["method", "problem", "seed", *metrics]].drop_duplicates(["method", "problem", "seed"])
    return kept.melt(["method", "problem", "seed"], var_name="metric", value_name="score")


def _best_fixed_sum(every: pd.DataFrame, frame: pd.DataFrame, world: World, choice: Sequence[int]) -> pd.DataFrame:
    """Return the runs of the sum with the fixed weights that are best at the seeds of the choice."""
    candidates = every[every["seed"].isin(choice) & every["method"].isin(world.tuned_methods)]
    if not len(candidates):
        return frame.iloc[:0]
    best, _ = rank_by_score(candidates, ["method", "lr"]).index[0]
    return frame[frame["method"] == best].assign(method=TUNED_SUM)


def _sum_without_factors(frame: pd.DataFrame, world: World) -> pd.DataFrame:
    """Return the runs of the plain sum without loss factors, in the place of each condition with factors."""
    plain = frame[frame["method"] == PLAIN_SUM]
    placed = [
        plain[plain["condition"] == without].assign(condition=condition, method=TUNED_SUM)
        for condition, without in world.tuned_conditions.items()
    ]
    return pd.concat(placed)


def _standings(world: World, runs: pd.DataFrame) -> WorldStandings:
    rows = runs.set_index(["problem", "metric", "seed", "method"])["score"].astype(float)
    made = rows.fillna(0.0).unstack().notna()
    with_sum = made[PLAIN_SUM]
    scores, made = rows.unstack()[with_sum], made[with_sum]
    methods = [method for method in scores.columns if method != TUNED_SUM]
    complete = [method for method in methods if made[method].all()]
    ranks = _rank_estimates(world, scores[complete])
    standings = []
    for method in methods:
        runs_made = scores.loc[made[method], method]
        standings.append(
            Standing(
                method,
                ranks.get(method),
                compare_scores(world, scores[method], scores[PLAIN_SUM]),
                compare_scores(world, scores[method], scores[TUNED_SUM]) if TUNED_SUM in scores else None,
                runs=len(runs_made) // len(world.metrics),
                diverged=int(runs_made.isna().sum()) // len(world.metrics),
                seeds=runs_made.index.get_level_values("seed").nunique(),
                problems=runs_made.index.get_level_values("problem").nunique(),
            )
        )
    standings = [standing for standing in standings if standing.runs]
    standings.sort(key=_order)
    seeds, problems = (tuple(scores.index.get_level_values(level).unique()) for level in ("seed", "problem"))
    return WorldStandings(world, tuple(standings), scores, seeds, problems)


def _order(standing: Standing) -> tuple[float, float]:
    """Sort by rank, and methods without a rank by their comparison with the plain sum."""
    against = standing.against_sum
    return (
        np.inf if standing.rank is None else standing.rank.value,
        np.inf if against is None else -against.value,
    )


def _rank_estimates(world: World, scores: pd.DataFrame) -> dict[str, Estimate]:
    """Return the mean rank of each method over problems and metrics. Runs that diverged rank last."""
    signs = scores.index.get_level_values("metric").map(lambda metric: 1.0 if world.metrics[metric] else -1.0)
    signed = scores.mul(np.asarray(signs, dtype=float), axis=0)
    ranks = signed.rank(axis=1, ascending=False, na_option="bottom")
    by_seed = ranks.groupby(level="seed").mean()
    found = {}
    for method in scores.columns:
        values = by_seed[method].to_numpy(dtype=np.float64)
        found[str(method)] = _estimate(
            lambda seeds, values=values: values[seeds].mean(-1),  # type: ignore[misc]
            len(values),
            (1.0, len(scores.columns)),
        )
    return found


def compare_scores(world: World, method: "pd.Series[float]", reference: "pd.Series[float]") -> Estimate | None:
    """Compare a method with a reference on the runs that both have, in the unit of the world; None without any."""
    pairs = pd.DataFrame({"method": method, "reference": reference}).dropna()
    if not len(pairs):
        return None
    if world.unit == "factor":
        logs = np.log(pairs.clip(lower=SMALLEST))
        gains = (logs["reference"] - logs["method"]).groupby(level="seed")
        total, count = gains.sum().to_numpy(), gains.count().to_numpy()
        found = _estimate(lambda seeds: total[seeds].sum(-1) / count[seeds].sum(-1), len(total))
        return Estimate(*(float(np.exp(value)) for value in (found.value, found.low, found.high)))
    sums = pairs.groupby(level=["metric", "seed"]).sum().unstack("seed")
    signs = np.array([1.0 if world.metrics[metric] else -1.0 for metric in sums.index])[:, None]
    ours, theirs = (sums[name].to_numpy(dtype=np.float64) for name in ("method", "reference"))

    def change(seeds: NDArray[np.intp]) -> Array:
        chosen = seeds.reshape(-1, seeds.shape[-1])
        ratios = np.nansum(ours[:, chosen], -1) / np.nansum(theirs[:, chosen], -1)
        return np.asarray((100 * signs * (ratios - 1)).mean(0)).reshape(seeds.shape[:-1])

    return _estimate(change, ours.shape[1])


def _estimate(
    statistic: Callable[[NDArray[np.intp]], Array],
    seeds: int,
    possible: tuple[float, float] = (-np.inf, np.inf),  # Student's t does not know the range of ranks
) -> Estimate:
    value = float(statistic(np.arange(seeds)))
    if seeds < SEEDS_OF_AN_INTERVAL:
        return Estimate(value, value, value)
    low, high = np.clip(seed_interval(statistic, seeds), *possible)
    return Estimate(value, float(low), float(high))
