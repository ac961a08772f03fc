"""The command line: what there is, run it again, look at it."""

import importlib.util
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

try:
    if importlib.util.find_spec("pandas") is None:  # imported where tables are made: it takes its time
        raise ModuleNotFoundError(name="pandas")
    import typer
    from rich.table import Column, Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise SystemExit(f"the command line needs {missing.name}: pip install 'counterpoise[lab]'") from missing

import torch

import counterpoise as cp

from ..atlas import atlas as atlas_page
from ..data.dense import DENSE
from ..data.locations import SOURCES, VARIABLE, data_folder, present
from ..engine import CorruptWarning, Run, RunError, Stack, Store, make_executor, plan, run_stacks
from ..engine.torchrun import started_by_torchrun
from ..files import write_whole
from ..loggers import Board, BoardError, Boards, MLflow, TensorBoard
from ..studies import PAPER_STUDIES, SATURATION, STUDIES, Cell, Study, charted, find_study
from ..studies.dense import on_scenes
from ..studies.select import parse_seeds, select
from .data import data as data_command
from .progress import Watch
from .terminal import Commands, console, fail, say, told

app = typer.Typer(
    cls=Commands, no_args_is_help=True, pretty_exceptions_show_locals=False, help="Balance losses; check the paper."
)


class ExecutorChoice(StrEnum):
    inline = "inline"
    processes = "processes"
    ray = "ray"


Names = Annotated[list[str] | None, typer.Argument(help="Studies by name; none: the paper's four.", show_default=False)]
Out = Annotated[Path, typer.Option(help="Folder of runs and reports.")]
Seeds = Annotated[
    str | None, typer.Option(help='"42-51", "42,43,44" or "paper"; default: the paper\'s, and ten.', show_default=False)
]
Epochs = Annotated[int | None, typer.Option(min=1, help="Fewer or more epochs than the study's.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:0.")]
Quick = Annotated[bool, typer.Option("--quick", help="A smaller form of the study, where it has one.")]
Methods = Annotated[list[str] | None, typer.Option("--method", help="Only these methods.", show_default=False)]
SCENES = "scenes"
DataChoice = Annotated[
    str | None,
    typer.Option(
        "--data",
        help=f'The data folder, default ${VARIABLE}; or "scenes": ray-cast rooms for NYUv2.',
        show_default=False,
    ),
]
Conditions = Annotated[list[str] | None, typer.Option("--condition", help="Only these columns.", show_default=False)]


@app.command()
def methods() -> None:
    """The methods of the library."""
    for title, names in (
        ("Methods that weigh losses", cp.methods("loss")),
        ("Methods that combine task gradients", cp.methods("gradient")),
    ):
        table = Table(Column("method", no_wrap=True), "when to use it", title=title, show_lines=True)
        for name in names:
            m = cp.describe(name)
            facts = "; ".join(filter(None, (m.paper, f"needs {', '.join(m.needs)}" if m.needs else "")))
            summary = Text(m.summary).append(f"\n{facts}" if facts else "", style="dim")
            table.add_row(Text(name).append(f"\ncp.{m.build.__name__}", style="dim"), summary)
        console.print(table)


@app.command()
def studies(
    study: Annotated[str | None, typer.Argument(help="List the grid of this study.", show_default=False)] = None,
    out: Out = Path("runs"),
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: Device = "cpu",
    method: Methods = None,
    condition: Conditions = None,
    data: DataChoice = None,
    quick: Quick = False,
) -> None:
    """The studies, or the grid of one: which of its runs are finished."""
    store = Store(out)
    if study is None:
        if quick or any(given is not None for given in (seeds, epochs, method, condition, data)):
            fail("name a study: of all of them only --out and --device can be chosen")
        table = Table(Column("study", no_wrap=True), "question", "runs", "finished")
        for entry in STUDIES.values():
            runs = [cell.run for cell in select(entry, entry.grid(device=_known(device)), None, None)]
            finished = sum(store.result(run) is not None for run in runs)
            table.add_row(entry.name, entry.question, str(len(runs)), str(finished))
        console.print(table)
        _say_others(device, {place for name in STUDIES for place in store.devices(name)})
        return
    chosen = _study(study, data, quick)
    table = Table("method", "condition", "seed", "lr", "folder", "score", title=chosen.title)
    for cell in _cells(chosen, seeds, epochs, _known(device), method, condition):
        result = store.result(cell.run)
        score = "–" if result is None else _scored(result)
        row = (cell.method, cell.condition.key, str(cell.run.seed), f"{cell.run.network_lr:g}", cell.run.key, score)
        table.add_row(*row)
    console.print(table)
    _say_others(device, store.devices(chosen.name))


@app.command()
def reproduce(
    names: Names = None,
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: Device = "cpu",
    executor: Annotated[ExecutorChoice, typer.Option(help="Where runs are trained.")] = ExecutorChoice.processes,
    jobs: Annotated[int | None, typer.Option(min=1, help="Local processes; default: one per processor.")] = None,
    address: Annotated[str | None, typer.Option(help='A Ray cluster: "auto", or its address.')] = None,
    out: Out = Path("runs"),
    method: Methods = None,
    condition: Conditions = None,
    data: DataChoice = None,
    quick: Quick = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Log every run's losses, weights and chart there.", show_default=False)
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(help="The same for MLflow: its tracking URI.", show_default=False)
    ] = None,
) -> None:
    """Runs studies (those runs that are not finished yet), and shows and writes tables, claims and figures."""
    if names == [SATURATION]:
        names, method = [study.name for study in charted()], method or ["BPGS"]
    wanted = names or [study.name for study in PAPER_STUDIES]
    chosen = [_study(name, data, quick) for name in dict.fromkeys(wanted)]
    device = _device(device)
    _check_executor(executor, address, jobs)
    cells = [c for study in chosen for c in _cells(study, seeds, epochs, device, method, condition)]
    runs = list(dict.fromkeys(cell.run for cell in cells))  # one may stand in several tables
    _check_data(runs, data)
    if started_by_torchrun() and any(run.data.name not in DENSE for run in runs):
        fail("torchrun is for the studies of NYUv2: the others train many runs in one process already")
    store = Store(out)
    boards = Boards(_boards(tensorboard, mlflow), cells, store)
    _check_folder(out)
    _check_folder(out / "report")
    stacks = plan(runs, store)
    boards.finished()
    try:
        with (
            make_executor(executor.value, jobs=jobs, address=address, device=device) as where,
            Watch(console, store, len(runs), stacks) as watch,
        ):
            from ..report import Book, provenance, workshop  # takes as long as the workers to start

            def follow(running: Sequence[Stack], ended: Sequence[Stack]) -> None:
                watch(running, ended)
                boards.log(run for stack in ended for run in stack.runs)

            run_stacks(stacks, out, where, follow)
    except KeyboardInterrupt:
        _stopped(store, stacks)
        raise typer.Exit(130) from None
    except RunError as error:
        _stopped(store, stacks)
        fail(str(error))
    if started_by_torchrun() and os.environ["RANK"] != "0":
        return
    book = Book(chosen, store, seeds=_seeds(seeds, chosen), epochs=epochs, device=device)
    book.show(console)
    options = {"--seeds": seeds, "--epochs": epochs, "--device": device, "--method": method, "--condition": condition}
    options |= {"--data": SCENES} if data == SCENES else {}
    made = out / "report" / "made.md"
    names = [study.name for study in chosen]
    try:
        written = [*book.write(out / "report"), made]
        write_whole(made, f"{provenance(names, options, quick)}\n{workshop(out, names)}".encode())
    except OSError as error:
        fail(f"{told(error)}. All runs are finished and kept in {out}: the same command writes the report")
    say(f"{len(written)} files in {out / 'report'}: tables, ledger and figures")


@app.command()
def show(
    study: Annotated[str, typer.Argument(help="A study by name.")],
    out: Out = Path("runs"),
    seeds: Seeds = None,
    epochs: Epochs = None,
    device: Annotated[
        str | None, typer.Option(help="Only runs of this device; default: where it was run.", show_default=False)
    ] = None,
    data: DataChoice = None,
    quick: Quick = False,
) -> None:
    """The tables of a study, ours beside the paper's, and its claims; whichever device it was run on.

    "saturation" is the table of how near BPGS comes to the edge of its chart, from all studies that were run.
    """
    from ..report import Book, saturation

    store = Store(out)
    if study == SATURATION:
        if quick or not (seeds is None and epochs is None and data is None):
            fail("saturation is one table of all runs as the paper has them: it takes --out and --device alone")
        found = saturation.anywhere(charted(), store, device and _known(device))
        if len(found):
            console.print(saturation.terminal(found))
        else:
            say(f"no run of BPGS in {out} has left its chart yet")
        return
    chosen = _study(study, data, quick)
    there = _run_on(chosen, store, seeds, epochs, store.devices(study) or ["cpu"])
    shown = _known(device) if device else next(iter(there), "any device")
    if shown not in there:
        others = f"; there are some on {' and '.join(there)}" if there else ""
        fail(f"no finished run of {study} in {out} on {shown} at these seeds and epochs{others}")
    Book([chosen], store, seeds=_seeds(seeds, [chosen]), epochs=epochs, device=shown).show(console)
    if device is None:
        _say_others(shown, there)


@app.command()
def atlas(out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("atlas.html")) -> None:
    """The method atlas: a page whose sliders show what each method makes of losses and gradients."""
    write_whole(out, atlas_page().encode())
    say(f"written: {out} (open it in a browser)")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, or of recorded results.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page and its files go.")],
) -> None:
    """Turns any set of run folders and recorded results into one page that opens from disk, and files beside it.

    Folders that are missing, partial or not ours are listed on the page.
    """
    for name in ("jinja2", "plotly"):
        if importlib.util.find_spec(name) is None:
            fail(f"the page needs {name}: pip install 'counterpoise[lab]'")
    from .. import report

    found = report.gather(runs)
    if not found.runs and not found.recorded:
        fail("; ".join(f"{problem.path}: {problem.reason}" for problem in found.problems[:5]))
    _check_folder(out)
    written = report.write(found, out)
    for problem in found.problems[:20]:
        say(f"{problem.path} ({problem.kind}: {problem.reason})", ("not used:", "yellow"))
    size = f"{written[0].stat().st_size / 2**20:.1f} MB"
    say(f"{written[0]} ({size}) and {len(written) - 1} files beside it")


app.command()(data_command)


def _check_data(runs: list[Run], given: str | None) -> None:
    """Fails if a study's data are not here; workers find the folder in their environment."""
    if given not in (None, SCENES):
        os.environ[VARIABLE] = str(Path(given).resolve())
    where = data_folder()
    needed = {run.data.name for run in runs}
    missing = [source for source in SOURCES if source.name in needed and not present(source, where)]
    if missing:
        places = "; ".join(f"{source.name}: {source.get}" for source in missing)
        folder = where or f"which is not set: --data, or the environment variable {VARIABLE}"
        fail(f"data are missing in the data folder ({folder}). {places}")


def _study(name: str, data: str | None = None, quick: bool = False) -> Study:
    try:
        study = find_study(name)
        if data == SCENES or (quick and study.problem in DENSE):
            return on_scenes(study, small=quick)
        return study.smaller() if quick else study
    except ValueError as error:
        fail(str(error))


def _cells(
    study: Study,
    seeds: str | None,
    epochs: int | None,
    device: str,
    method: list[str] | None,
    condition: list[str] | None,
) -> list[Cell]:
    try:
        cells = study.grid(seeds=parse_seeds(seeds, study), epochs=epochs, device=device)
        return select(study, cells, method, condition)
    except ValueError as error:
        fail(str(error))


def _scored(result: Mapping[str, Any]) -> str:
    """The score of a run, or the best value of what it watched; a run that diverged has neither."""
    found = [value for value in (result.get("macro"), result["best"]["value"]) if value is not None]
    return f"{found[0]:.3f}" if found else "–"


def _run_on(study: Study, store: Store, seeds: str | None, epochs: int | None, devices: Iterable[str]) -> list[str]:
    """Those of the devices on which a run of the study has ended."""
    cells = {device: _cells(study, seeds, epochs, device, None, None) for device in devices}
    return [device for device in devices if any(store.result(cell.run) for cell in cells[device])]


def _say_others(shown: str, devices: Iterable[str]) -> None:
    """That there are runs of other devices than the one that is shown."""
    others = sorted(set(devices) - {shown})
    if others:
        say(f"These are runs of {shown}. There are others, of {' and '.join(others)}: --device {others[0]} shows them.")


def _seeds(seeds: str | None, chosen: list[Study]) -> list[int] | None:
    """The seeds that were named; None (the paper's and ten) for "paper", whose seeds differ between studies."""
    if seeds is None or seeds == "paper":
        return None
    return parse_seeds(seeds, chosen[0])


def _device(name: str) -> str:
    if _known(name).startswith("cuda"):
        if not torch.cuda.is_available():
            fail("no CUDA device here: leave --device out to train on the CPU")
        if (torch.device(name).index or 0) >= torch.cuda.device_count():
            fail(f"no device {name!r} here: expected one below cuda:{torch.cuda.device_count()}")
    return name


def _known(name: str) -> str:
    """A device by its name, whether it is here or not."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        fail(f"unknown device {name!r}: expected cpu, cuda or cuda:N")
    if kind != "cuda" and name != "cpu":
        fail(f"device {name!r} is not supported: expected cpu, cuda or cuda:N")
    return name


def _check_folder(out: Path) -> None:
    """Makes a folder, and fails if nothing can be written there: better now than after hours of training."""
    if out.exists() and not out.is_dir():
        fail(f"{out} is a file, expected a folder to write to")
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        fail(f"cannot write to {out}: {error.strerror}")


def _check_executor(executor: ExecutorChoice, address: str | None, jobs: int | None) -> None:
    if address is not None and executor is not ExecutorChoice.ray:
        fail(f"--address is for --executor ray, not for {executor.value}")
    if jobs is not None and executor is not ExecutorChoice.processes:
        fail(f"--jobs is for --executor processes, not for {executor.value}")
    if executor is ExecutorChoice.ray and importlib.util.find_spec("ray") is None:
        fail("--executor ray needs Ray: pip install 'counterpoise[ray]'")


def _boards(folder: Path | None, uri: str | None) -> list[Board]:
    """The boards that were asked for; of several processes the first one logs."""
    if started_by_torchrun() and os.environ["RANK"] != "0":
        return []
    try:
        boards: list[Board] = [TensorBoard(folder)] if folder is not None else []
        return boards + ([MLflow(uri)] if uri is not None else [])
    except BoardError as error:
        fail(str(error))


def _stopped(store: Store, stacks: list[Stack]) -> None:
    runs = [run for stack in stacks for run in stack.runs]
    finished = sum(store.result(run) is not None for run in runs)
    console.print(f"\nstopped: {finished} of {len(runs)} runs were finished. The same command goes on from here.")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no "×" gets a "?", not a traceback
    warnings.simplefilter("always", CorruptWarning)
    warnings.showwarning = lambda message, *_: say(str(message), ("warning:", "yellow"), stderr=True)
    app()


if __name__ == "__main__":
    main()
