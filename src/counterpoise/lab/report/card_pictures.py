"""Small pictures on the cards of the worlds: predictions, solutions, curves over loss factors, or bars by problem."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..data.pde import EQUATIONS
from ..data.visualisation import COLUMNS, EXAMPLES, PREDICTED
from ..engine.pinn import decode_field
from ..studies import STUDIES, Cell
from .html_sections import data_url
from .leaderboard import SMALLEST, WorldStandings
from .leaderboard_worlds import PLAIN_SUM, method_labels
from .run_collection import FinishedRun

if TYPE_CHECKING:
    from PIL import Image

FinishedCells = Mapping[str, Sequence[tuple[Cell, FinishedRun]]]
"""The finished runs of each study, with their cells."""

WIDTH, HEIGHT = 320.0, 84.0
"""Size of a drawing."""
LABELS = 118.0  # width of the labels at the ends of curves
LINE = 13.0  # distance between two labels
BLUE_TO_RED = ("#2166ac", "#67a9cf", "#f7f7f7", "#ef8a62", "#b2182b")


@dataclass(frozen=True)
class Tile:
    """An image with its label and, for a solution, its error."""

    label: str
    source: str  # a data URL
    error: str = ""


@dataclass(frozen=True)
class Bar:
    """A bar from the zero line up (a gain) or down."""

    x: float
    y: float
    width: float
    height: float
    gain: bool


@dataclass(frozen=True)
class Curve:
    """A curve with a label at its end."""

    label: str
    points: str  # in the notation of SVG
    label_y: float
    rank: int


@dataclass(frozen=True)
class CardPicture:
    """The picture of a card: tiles, bars or curves, and what it shows."""

    caption: str
    tiles: tuple[Tile, ...] = ()
    bars: tuple[Bar, ...] = ()
    curves: tuple[Curve, ...] = ()
    zero: float = 0.0  # height of the zero line of bars


def card_picture(standings: WorldStandings, finished: FinishedCells) -> CardPicture:
    """Return the picture of a world: predictions or solutions where runs have them, otherwise its scores."""
    return predictions(standings, finished) or solutions(standings, finished) or curves(standings) or bars(standings)


def predictions(standings: WorldStandings, finished: FinishedCells) -> CardPicture | None:
    """Return the predictions of the best method with pictures for one held-out image."""
    found: dict[str, bytes] = {}
    for method, cell, run in _cells(standings, finished):
        if method not in found and cell.condition.key in standings.world.conditions:
            sheet = run.picture(PREDICTED)
            if sheet is not None:
                found[method] = sheet
    for standing in standings.ranked:
        row = _first_row(found.get(standing.method, b""))
        if row:
            names = {"seg": "classes", "depth": "depth", "normals": "surface normals"}
            columns = ", ".join(names[column] for column in COLUMNS[PREDICTED])
            return CardPicture(f"{standing.method} on a held-out image: {columns}", (Tile("", data_url(row)),))
    return None


def solutions(standings: WorldStandings, finished: FinishedCells) -> CardPicture | None:
    """Return the exact solution of the first equation, and those of the best method, the plain sum and BPGS."""
    shown = dict.fromkeys([*(s.method for s in standings.ranked[:1]), PLAIN_SUM, "BPGS"])
    study = next(
        (study for name in standings.world.studies if (study := STUDIES[name]).title in standings.problems), None
    )
    fields: dict[str, NDArray[np.float64]] = {}
    errors: dict[str, str] = {}
    for method, cell, run in _cells(standings, finished):
        text = run.result.get("field")
        fits = study and cell.run.study == study.name and cell.condition.key in standings.world.conditions
        if fits and method in shown and method not in fields and isinstance(text, str):
            fields[method] = decode_field(text)
            errors[method] = f"error {run.result['metrics']['rel_l2']:.2g}"
    if study is None or not fields:
        return None
    equation, points = EQUATIONS[study.problem], len(next(iter(fields.values())))
    exact = equation.exact(equation.grid(points)).reshape(points, points).numpy()
    named = {"exact": exact} | {method: fields[method] for method in shown if method in fields}
    tiles = [
        Tile(label, data_url(image), errors.get(label, ""))
        for label, values in named.items()
        if (image := _field(values, exact))
    ]
    return CardPicture(f"{study.title}: solutions", tuple(tiles)) if tiles else None


def curves(standings: WorldStandings) -> CardPicture | None:
    """Return the score against the loss factor; None in a world that does not have the same problem at many factors."""
    world = standings.world
    if not world.tuned_studies or len(set(world.tuned_conditions.values())) != 1:
        return None
    title = STUDIES[world.tuned_studies[0]].title
    problems = [f"{title}: {condition}" for condition in world.tuned_conditions]
    shown = dict.fromkeys([*(s.method for s in standings.ranked[:1]), "BPGS", "Kendall", PLAIN_SUM])
    methods = [method for method in shown if method in standings.scores]
    means = standings.scores[methods].groupby(level="problem").mean()
    if not set(problems) <= set(means.index):
        return None
    table = means.loc[problems]
    low, span = float(table.min(axis=None)), float(np.ptp(table.to_numpy())) or 1.0
    xs = np.linspace(4, WIDTH - LABELS, len(problems))
    ys = HEIGHT - 8 - (table - low) / span * (HEIGHT - 16)
    order = sorted(methods, key=lambda method: ys[method].iloc[-1])
    places = _spread([float(ys[method].iloc[-1]) for method in order])
    lines = [
        Curve(
            method,
            " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys[method], strict=True)),
            places[order.index(method)],
            rank,
        )
        for rank, method in enumerate(methods)
    ]
    first, *_, last = world.tuned_conditions
    return CardPicture(f"Score against the factor on one loss, {first} to {last}", curves=tuple(lines))


def bars(standings: WorldStandings) -> CardPicture:
    """Return a bar per problem, or per metric of a single problem: the best method against the plain sum."""
    world, method = standings.world, next(s.method for s in standings.ranked if s.method != PLAIN_SUM)
    level, noun = ("problem", "problems") if len(standings.problems) > 1 else ("metric", "metrics")
    scores = standings.scores[[method, PLAIN_SUM]].dropna()
    if world.unit == "factor":
        scores = -np.log(scores.clip(lower=SMALLEST))
    lower = [world.unit == "change" and not world.metrics[m] for m in scores.index.get_level_values("metric")]
    signs = np.where(lower, -1.0, 1.0)
    gains = ((scores[method] - scores[PLAIN_SUM]) * signs).groupby(level=level).mean().sort_values(ascending=False)
    largest, least = max(gains.max(), 0.0), min(gains.min(), 0.0)
    scale = (HEIGHT - 8) / ((largest - least) or 1.0)
    zero, step = 4 + largest * scale, WIDTH / len(gains)
    drawn = [
        Bar(i * step + 0.1 * step, zero - max(gain, 0.0) * scale, 0.8 * step, max(abs(gain) * scale, 0.5), gain > 0)
        for i, gain in enumerate(gains)
    ]
    return CardPicture(f"{method} against the plain sum on {len(gains)} {noun}", bars=tuple(drawn), zero=zero)


def _cells(standings: WorldStandings, finished: FinishedCells) -> list[tuple[str, Cell, FinishedRun]]:
    """Return the finished runs of a world's studies with the names of their methods on the leaderboard."""
    return [
        (labels[cell.method], cell, run)
        for name in standings.world.studies
        for labels in [method_labels(STUDIES[name])]
        for cell, run in finished.get(name, ())
        if cell.method in labels
    ]


def _spread(heights: Sequence[float]) -> list[float]:
    """Return increasing heights moved apart so that labels do not overlap, the last one within the drawing."""
    places = list(heights)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + LINE)
    limit = HEIGHT - 5
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - LINE
    return [round(place, 1) for place in places]


def _first_row(sheet: bytes) -> bytes:
    """Return the first of the images of a sheet; empty if it cannot be read."""
    try:
        from PIL import Image

        with Image.open(io.BytesIO(sheet)) as image:
            return _webp(image.crop((0, 0, image.width, image.height // EXAMPLES)))
    except (ModuleNotFoundError, OSError):  # Pillow belongs to an extra
        return b""


def _field(values: NDArray[np.float64], exact: NDArray[np.float64]) -> bytes:
    """Return a solution as an image, blue to red; empty without Pillow."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return b""
    limit = float(np.abs(exact).max()) or 1.0
    shares = np.clip((values.T[::-1] / limit + 1) / 2, 0, 1)
    stops = np.linspace(0, 1, len(BLUE_TO_RED))
    ramp = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in BLUE_TO_RED])
    pixels = np.stack([np.interp(shares, stops, ramp[:, channel]) for channel in range(3)], -1)
    return _webp(Image.fromarray(pixels.round().astype(np.uint8)))


def _webp(image: "Image.Image") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=75, method=6)
    return buffer.getvalue()
