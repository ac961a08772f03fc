"""Compare methods in a user's own training function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine import ExecutorName, Recipe, Run, RunBatch, Schedule, Store, spec
from ..engine.archive import RunFolder
from ..engine.balancer_groups import build_balancer
from ..engine.config import freeze_options
from ..engine.function_trainer import (
    FOLDER_VARIABLE,
    FUNCTION,
    FunctionError,
    call_arguments,
    describe_run,
    load_function,
    source_digest,
)
from ..errors import RunError, UsageError
from ..studies import STUDIES, Cell, Condition, Study
from ._checks import check_available, make_writable
from ._training import ProgressFactory, check_executor, train_runs, training_stages
from .compare_arguments import (
    Directions,
    check_options,
    function_reference,
    parse_directions,
    parse_methods,
    parse_own_seeds,
    parse_rates,
    parse_tasks,
)
from .page import check_page_packages

if TYPE_CHECKING:  # pandas takes long to import
    from ..report import Report

RATE_SEEDS = (100, 101)
REPORT = "report"


@dataclass(frozen=True)
class Comparison:
    """The report of a comparison, and the written files with the page first."""

    report: Report
    files: list[Path] = field(default_factory=list)


def compare(
    function: str | Callable[..., Any],
    *,
    tasks: str | Sequence[str],
    methods: str | Iterable[str] | Mapping[str, Recipe],
    better: str | Iterable[str] | Mapping[str, str],
    seeds: str | Iterable[int] = (0, 1, 2),
    rates: str | Iterable[float] = (),
    rate_seeds: str | Iterable[int] = RATE_SEEDS,
    choose_by: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    device: str = "cpu",
    executor: ExecutorName = "processes",
    jobs: int | None = None,
    address: str | None = None,
    out: Path | str = "comparison",
    progress: ProgressFactory | None = None,
    on_report: Callable[[Report], None] | None = None,
) -> Comparison:
    """Call a training function with each method and seed, and write tables, ranks, figures and one HTML page.

    The function is called as `function(balancer, seed=…, lr=…, device=…, **options)` and returns its scores as a
    dictionary. `seed` and `device` are passed if it has such parameters, `lr` if rates are given. Python, NumPy and
    torch are seeded before each call. Finished runs are kept, and repeated only if the function's file has changed. A
    run whose function raises an exception does not stop the others, except with the executor "inline".

    `tasks`, `methods`, `better`, `seeds`, `rates` and `rate_seeds` are lists, or text that is split at commas.

    Args:
        function: "package.module:function", "file.py:function", or a function at the top level of a file.
        tasks: Names of the losses that the function balances.
        methods: Names of methods ("bpgs"), with options ("cagrad(alpha=0.2)"), or combined ("bpgs + pcgrad"); or a
            mapping from labels to recipes.
        better: "lower" or "higher" for all scores, or a direction per score: {"error": "lower"}, ["error=lower"].
        seeds: Seeds as a list, or as text such as "0-4". Default: (0, 1, 2).
        rates: Learning rates. Default: none, the function chooses its own.
        rate_seeds: Seeds at which each method's rate is chosen if there are several rates. They are not reported.
            Default: (100, 101).
        choose_by: The score by which rates are chosen. Default: the first one.
        options: Further keyword arguments of the function: numbers, text or booleans; not `seed` or `device`.
        name: Name of the comparison, which is the folder of its runs. Default: file and function.
        device: cpu, cuda or cuda:N.
        executor: Where runs are trained: in this process, in local processes, or on a Ray cluster.
        jobs: Number of local processes. Default: one per CPU.
        address: Address of a Ray cluster, or "auto".
        out: Folder of runs; the page is written to its subfolder `report`.
        progress: Makes the context manager that follows the training.
        on_report: Called with the report before its files are written.

    Returns:
        The report and its files.

    Raises:
        UsageError: If an argument is invalid, or if the scores of the runs differ in their names.
        RunError: If runs failed or returned no scores. Finished runs are kept: the next call repeats only the others.
    """
    reference, directions = function_reference(function), parse_directions(better)
    names, shown, all_rates = parse_tasks(tasks), parse_own_seeds(seeds), parse_rates(rates)
    choice = parse_own_seeds(rate_seeds) if len(all_rates) > 1 else ()
    if set(shown) & set(choice):
        common = ", ".join(map(str, sorted(set(shown) & set(choice))))
        raise UsageError(f"seeds {common} are reported and choose the rates: pass other --rate-seeds")
    study = make_study(
        reference,
        tasks=names,
        methods=parse_methods(methods),
        seeds=shown,
        rates=all_rates,
        rate_seeds=choice,
        options=check_options({} if options is None else options, has_rates=bool(all_rates)),
        name=name,
    )
    cells = list(study.grid(device=check_available(device)))
    _check_call(cells, names)
    check_executor(executor, address, jobs)
    check_page_packages()
    out = Path(out)
    for folder in (out, out / REPORT):
        make_writable(folder)
    results = ComparisonResults(Store(out), directions, choose_by)
    results.check([cell.run for cell in cells])
    settings = {"executor": executor, "jobs": jobs, "address": address, "device": device, "progress": progress}
    with _function_folder() if executor == "ray" else nullcontext():
        _train(study, cells, results, settings)
    return _write(study, cells, results, out, device, on_report)


def make_study(
    reference: str,
    *,
    tasks: tuple[str, ...],
    methods: Mapping[str, Recipe],
    seeds: tuple[int, ...],
    rates: tuple[float, ...],
    rate_seeds: tuple[int, ...],
    options: Mapping[str, Any],
    name: str | None = None,
) -> Study:
    """Return a comparison as a study, whose grid has a run per method, rate and seed.

    Raises:
        UsageError: If the name is taken.
    """
    source, _, function = reference.rpartition(":")
    name = name or f"{Path(source.replace('.py', '')).name}-{function}"
    if name in STUDIES or not all(c.isalnum() or c in "-_." for c in name) or name.startswith("."):
        raise UsageError(f"invalid name {name!r}: expected letters, digits, - and _, and no name of a study")
    description = freeze_options(
        function=reference,
        source=source_digest(load_function(reference)),
        tasks=tasks,
        options=tuple(sorted(options.items())),
    )
    question = (
        f"How do {len(methods)} methods compare" if len(methods) > 1 else f"What does {next(iter(methods))} score"
    )
    return Study(
        name=name,
        title=name,
        question=f"{question} in {reference} on {', '.join(tasks)}?",
        problem=FUNCTION,
        conditions=(Condition("main", description),),
        methods=methods,
        seeds=seeds,
        ten_seeds=seeds,
        schedule=Schedule(epochs=1),
        model=spec(FUNCTION),
        metrics=(),
        decimals=4,
        layout="comparison",
        paper_seeds_only=True,
        rates=rates,
        rate_seeds=rate_seeds,
    )


class ComparisonResults:
    """The results of a comparison in the terms of a report.

    Columns are named after the scores, with an arrow for their direction. The macro score, by which rates are chosen,
    is one of the scores, with its sign changed if lower values are better.

    Args:
        store: Where the runs are.
        directions: The directions of the scores.
        choose_by: The score by which rates are chosen. Default: the first one.
    """

    def __init__(self, store: Store, directions: Directions, choose_by: str | None) -> None:
        self.store, self.directions, self.choose_by = store, directions, choose_by
        self.first: tuple[Run, list[str]] | None = None  # the first finished run and the names of its scores

    def scores(self) -> list[str]:
        """Return the names of the scores."""
        return [] if self.first is None else self.first[1]

    def check(self, runs: Iterable[Run]) -> None:
        """Check that the finished ones of these runs have the same scores, each with a direction.

        Raises:
            UsageError: If a score is missing in a run, or has no direction.
        """
        for run in runs:
            result = self.store.result(run)
            if result is None:
                continue
            names = list(result["metrics"])
            if self.first is None:
                self._check_directions(names)
                self.first = run, names
            if set(names) != set(self.first[1]):
                missing = sorted(set(self.first[1]) ^ set(names))
                without, with_it = (run, self.first[0]) if missing[0] in self.first[1] else (self.first[0], run)
                raise UsageError(
                    f"the score {missing[0]!r} is missing in the run of {describe_run(without)}, but not in that of "
                    f"{describe_run(with_it)}: the function must return the same scores for all methods and seeds"
                )

    def _check_directions(self, names: list[str]) -> None:
        for name in names:
            self.directions.of(name)
        for name in (*self.directions.by_score, *([self.choose_by] if self.choose_by else [])):
            if name not in names:
                raise UsageError(f"the function returned no score {name!r}: it returned {', '.join(names)}")

    def result(self, run: Run) -> dict[str, Any] | None:
        result = self.store.result(run)
        if result is None:
            return None
        scores = result["metrics"]
        chosen = self.choose_by or next(iter(scores))
        sign = 1.0 if self.directions.of(chosen) == "higher" else -1.0
        macro = None if scores[chosen] is None else sign * scores[chosen]
        return result | {"macro": macro, "metrics": {self.directions.column(s): v for s, v in scores.items()}}

    def history(self, run: Run) -> list[dict[str, Any]]:
        return []


def _train(study: Study, cells: Sequence[Cell], results: ComparisonResults, settings: dict[str, Any]) -> None:
    """Train the unfinished runs.

    Raises:
        RunError: If runs failed, after all others have finished.
    """
    failures: dict[Run, RunError] = {}

    def on_failure(batch: RunBatch, error: RunError) -> None:
        failures.update(dict.fromkeys(batch.runs, error))

    for stage in training_stages([study], cells, results.result):
        runs = [run for run in stage if run not in failures]  # the second stage contains the runs of the first
        train_runs(runs, results.store.root, on_finished=results.check, on_failure=on_failure, **settings)
    if failures:
        raise RunError(failure_message(list(failures.values())))


def failure_message(failures: Sequence[RunError]) -> str:
    """Return the errors of failed runs: the first with its traceback, the others with their last line."""
    count = f"{len(failures)} runs" if len(failures) > 1 else "1 run"
    lines = [f"{count} failed. Finished runs are kept: the same call repeats only the others."]
    for error in failures[1:]:
        first, *rest = str(error).strip().splitlines()
        lines.append(f"{first.rstrip()} {rest[-1]}" if rest else first)
    return "\n".join([*lines, str(failures[0]).rstrip()])


def _check_call(cells: Sequence[Cell], tasks: tuple[str, ...]) -> None:
    """Check that the function accepts its arguments, and that all balancers can be built."""
    first = cells[0].run
    try:
        call_arguments(load_function(first.data.kwargs["function"]), first)
    except FunctionError as error:
        raise UsageError(str(error)) from error
    for method, run in {cell.method: cell.run for cell in cells}.items():
        try:
            build_balancer(run.recipe, tasks, [run.seed], stacked=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"method {method!r} cannot be built for the tasks {', '.join(tasks)}: {error}") from error


@contextmanager
def _function_folder() -> Iterator[None]:
    """Tell workers on a Ray cluster in which folder the function is looked up."""
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = before or str(Path.cwd())
    try:
        yield
    finally:
        if before is None:
            del os.environ[FOLDER_VARIABLE]


def _write(
    study: Study,
    cells: Sequence[Cell],
    results: ComparisonResults,
    out: Path,
    device: str,
    on_report: Callable[[Report], None] | None,
) -> Comparison:
    """Write the page and its files."""
    from ..report import CollectedRuns, Report, write_page
    from ..report.run_collection import FinishedRun
    from ..report.run_scores import collect_scores
    from ..report.variants import ReportVariant

    study = replace(study, metrics=tuple(map(results.directions.column, results.scores())))
    scores = {study.name: collect_scores(study, results, device=device)}
    report = Report([study], results, device=device, recorded=scores)
    if on_report is not None:
        on_report(report)
    finished = [cell for cell in cells if results.store.result(cell.run) is not None]
    folders = {cell.run: results.store.folder(cell.run) for cell in finished}
    collected = CollectedRuns(
        [str(out)],
        {run: FinishedRun(run, folder, RunFolder.read(folder)) for run, folder in folders.items()},
    )
    variant = ReportVariant((study,), "", device, recorded=scores, cells={study.name: tuple(finished)})
    return Comparison(report, write_page(collected, out / REPORT, [variant]))
