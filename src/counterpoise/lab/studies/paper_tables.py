"""Numbers of the paper's tables, and the claims that our rows match them."""

from collections.abc import Iterable, Mapping

from .claims import Claim, all_of, score

Paper = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
"""The paper's mean and standard deviation: metric → method → condition."""


def parse_table(conditions: Iterable[str], rows: Mapping[str, str]) -> dict[str, dict[str, tuple[float, float]]]:
    """Parse a table of one metric with one column per condition.

    Args:
        conditions: Keys of the columns.
        rows: The cells of each method as text, for example "0.780±0.007 0.769±0.013".

    Returns:
        Mean and standard deviation: method → condition.
    """
    keys = tuple(conditions)
    parsed = {}
    for method, row in rows.items():
        numbers = [tuple(float(x) for x in cell.split("±")) for cell in row.split()]
        parsed[method] = {key: (mean, sd) for key, (mean, sd) in zip(keys, numbers, strict=True)}
    return parsed


def parse_metrics_table(condition: str | tuple[str, ...], metrics: tuple[str, ...], rows: Mapping[str, str]) -> Paper:
    """Parse a table with one column per metric.

    Args:
        condition: Key of the condition that the table describes, or several keys that are compared with it.
        metrics: Names of the columns.
        rows: The cells of each method as text. A number without ± gets the standard deviation NaN.
    """
    conditions = (condition,) if isinstance(condition, str) else condition
    parsed: dict[str, dict[str, dict[str, tuple[float, float]]]] = {metric: {} for metric in metrics}
    for method, row in rows.items():
        for metric, cell in zip(metrics, row.split(), strict=True):
            mean, _, sd = cell.partition("±")
            parsed[metric][method] = dict.fromkeys(conditions, (float(mean), float(sd or "nan")))
    return parsed


def row_claims(paper: Paper, condition: str, source: str, methods: Iterable[str]) -> tuple[Claim, ...]:
    """Return one claim per row: our means are within two of the paper's standard deviations."""
    claims = []
    for method in methods:
        cells = {m: paper[m][method][condition] for m in paper if condition in paper[m].get(method, {})}
        near = [score(method, condition, m).near(mean, 2 * sd) for m, (mean, sd) in cells.items() if sd > 0]
        if near:
            text = ", ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in cells.values() if sd > 0)
            claims.append(Claim(f"{method}: {text}", f"{source}, within two standard deviations", all_of(near)))
    return tuple(claims)
