"""Check, time and train stacks of message passing networks for QM9 on CUDA.

python benchmarks/qm9_stack.py check --data DATA            # a few steps on CUDA and on the CPU, every method
python benchmarks/qm9_stack.py time --data DATA --runs 1,10 --precision fp16,tf32   # a table of times and memory
python benchmarks/qm9_stack.py train --data DATA --methods main --seeds 42-44 --out runs/qm9
python benchmarks/qm9_stack.py queue --data DATA --seconds 540 --bring BACK   # what is not recorded, see run_queue.py
"""

import argparse
import gc
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from pinn_stack import PROBED, is_captured, print_kernels
from qm9_reference import GeometricLoop, GeometricNetwork, graphs_of, to_stacked
from run_queue import Selection, add_options, run_queue
from timing import device_work, save

from counterpoise.lab.data.locations import data_folder
from counterpoise.lab.data.qm9 import TARGETS
from counterpoise.lab.engine import Recipe, Run, Store, spec
from counterpoise.lab.engine.cuda_graphs import WARM_UP
from counterpoise.lab.engine.qm9 import CHANGE, QM9Trainer
from counterpoise.lab.engine.qm9_batches import paired, separate
from counterpoise.lab.engine.qm9_workload import SYNTHETIC, load_molecules, molecule_inputs
from counterpoise.lab.models.qm9 import COMPUTE_DTYPES, StackedMPNN
from counterpoise.lab.studies import Cell, Study
from counterpoise.lab.studies.qm9 import (
    COMPARED,
    FEATURES,
    FURTHER,
    FURTHER_METHODS,
    FURTHER_SEEDS,
    GRADIENT_SPACE,
    KENDALL_SEEDS,
    MAIN,
    MAIN_METHODS,
    METHODS,
    RAW,
    RERUN,
    SANITISED,
    STUDY,
)
from counterpoise.lab.studies.select import select_runs

GROUPS = {"main": MAIN_METHODS, "further": FURTHER_METHODS, "gradient": GRADIENT_SPACE, "all": METHODS}
COLUMNS = ("case", "runs", "ms per step", "s per evaluation", "s per epoch", "kernels", "GiB", "CUDA graph")
PROFILED = 5  # steps
PROBED_MOLECULES = 600
LARGEST = 8  # runs of a stack whose checkpoint moves to another machine; it has 7.5 MB per run
RECORDED = (Path(__file__).parent.parent / "results" / "molecules",)


def make_runs(
    methods: dict[str, Recipe], count: int, device: str, options: argparse.Namespace, precision: Any
) -> list[Run]:
    """Return `count` runs spread over the methods, equal methods side by side."""
    chosen = {"molecules": options.molecules, "compared": options.compared}
    data = spec(data_name(), **{name: value for name, value in chosen.items() if value})
    schedule = replace(STUDY.schedule, precision=precision, batch_size=options.batch)
    names = list(methods)
    each = [count // len(names) + (i < count % len(names)) for i in range(len(names))]
    return [
        Run("qm9", data, STUDY.model, methods[name], seed, schedule, device)
        for name, number in zip(names, each, strict=True)
        for seed in range(number)
    ]


def data_name() -> str:
    """Return QM9, or synthetic molecules if there is no data folder."""
    return "qm9" if data_folder() else SYNTHETIC


def check(methods: dict[str, Recipe], options: argparse.Namespace) -> None:
    """Compare a few graph-replayed steps on CUDA with steps on the CPU, for every method alone."""
    for name, method in methods.items():
        values = {}
        for device in ("cpu", "cuda"):
            trainer = QM9Trainer(make_runs({name: method}, 2, device, options, options.precision[0]))
            trainer.start_epoch()
            with trainer.kernel_settings():
                for _ in range(options.steps):
                    trainer.advance()
            values[device] = trainer.network.value.cpu(), trainer.log.cpu()
            captured = all(map(is_captured, trainer.programs.values()))
        difference = float((values["cuda"][0] - values["cpu"][0]).abs().max())
        losses = float(((values["cuda"][1][0] - values["cpu"][1][0]) / values["cpu"][1][0]).abs().max())
        print(
            f"{name:24} captured {captured!s:5}  parameters differ by {difference:.1e}, losses by {losses:.1e}",
            flush=True,
        )


def compare_with_geometric(options: argparse.Namespace) -> None:
    """Compare outputs and gradients with torch-geometric on some molecules, alone and in pairs, in float32."""
    molecules = load_molecules(data_name(), options.molecules)[torch.arange(options.batch)]
    peer = GeometricNetwork().to(options.device)
    network = StackedMPNN([0], len(TARGETS)).to(options.device)
    with torch.no_grad():
        for name, value in (to_stacked(*item) for item in peer.named().items()):
            network.get_parameter(name).copy_(value)
    collate = import_module("torch_geometric.data").Batch.from_data_list
    out = peer(collate(graphs_of(molecules)).to(options.device))
    flow = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    grads = dict(zip(peer.named(), torch.autograd.grad(out, list(peer.named().values()), flow), strict=True))
    inputs = molecule_inputs(molecules, options.device, torch.float32)
    sizes = molecules.present().sum(1).to(options.device)
    index = sizes.argsort()
    half = options.batch // 2
    rows = torch.stack([index[:half], index[half:].flip(0)], -1).flatten()[None]
    shapes = {"alone": separate(inputs, rows), "in pairs": paired(inputs, rows, sizes)}
    for shape, batch in shapes.items():
        found = network(batch)
        own = torch.autograd.grad(found, list(network.parameters()), flow[rows])
        by_name = dict(zip((name for name, _ in network.named_parameters()), own, strict=True))
        expected = dict(to_stacked(*item) for item in grads.items())
        worst = max(float((by_name[name] - grad).norm() / grad.norm()) for name, grad in expected.items())
        difference = float((found[0] - out[rows[0]]).detach().abs().max() / out.detach().abs().max())
        print(f"torch-geometric, molecules {shape}: outputs differ by {difference:.1e}, gradients by {worst:.1e}")


def measure(methods: dict[str, Recipe], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print a table of the time and the memory of a step, and of the seconds of an epoch. Return its rows."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    rows = []
    for precision, runs in product(options.precision, options.runs):
        torch.cuda.reset_peak_memory_stats()
        trainer = QM9Trainer(make_runs(methods, runs, "cuda", options, precision))
        rows.append({"case": f"stacked, {precision}", "runs": runs} | _measured(trainer, options.steps))
        print(f"| {' | '.join(_cell(rows[-1][column]) for column in COLUMNS)} |", flush=True)
        if options.profile:
            with trainer.kernel_settings():
                print_kernels(trainer.advance, PROFILED, 30)
        del trainer
        gc.collect()  # trainers and their CUDA graphs refer to each other
        torch.cuda.empty_cache()
    return rows


def _measured(trainer: QM9Trainer, steps: int) -> dict[str, Any]:
    """Return the numbers of a row of the table."""
    trainer.start_epoch()
    with trainer.kernel_settings():
        for _ in range(20 * WARM_UP + 1):  # gradients are measured in every tenth step, and each graph has a warm-up
            trainer.advance()
        each = _seconds(trainer.advance, steps)
        for _ in range(WARM_UP + 1):
            trainer.evaluate(trainer.workload.validation)
        evaluation = _seconds(lambda: trainer.evaluate(trainer.workload.validation), 2)
        kernels = device_work(trainer.advance)[0]
    captured = all(map(is_captured, (*trainer.programs.values(), *trainer.measures.values())))
    return {
        "ms per step": 1e3 * each,
        "s per evaluation": evaluation,
        "s per epoch": each * trainer.workload.steps + evaluation,
        "kernels": kernels,
        "GiB": torch.cuda.max_memory_allocated() / 2**30,
        "CUDA graph": captured,
    }


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _seconds(step: Callable[[], object], count: int) -> float:
    """Return the mean time of a call."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def anchor(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Print the time of a step of torch-geometric's own loop, with and without its loader. Return the rows."""
    molecules = load_molecules(data_name(), min(options.molecules or 20_000, 20_000))
    loop = GeometricLoop(molecules, options.batch)
    steps = -(-110_831 // options.batch)
    rows = []
    for name, batches in (("with its loader", loop.loaded()), ("without its loader", loop.repeated())):
        step = partial(_advance, loop, batches)
        _seconds(step, 10)  # a warm-up
        each = _seconds(step, options.steps)
        print(f"torch-geometric {name}: {1e3 * each:.2f} ms/step, {steps} steps in {each * steps:.1f} s", flush=True)
        row = {"case": f"torch-geometric {name}", "runs": 1, "ms per step": 1e3 * each, "s per epoch": each * steps}
        rows.append(row | {"kernels": device_work(step)[0]})
    return rows


def _advance(loop: GeometricLoop, batches: Iterator[object]) -> None:
    loop.step(next(batches))


def train(options: argparse.Namespace) -> int:
    """Train runs of the study in each precision, and print a table of their results. Return the exit code."""
    labels = list(GROUPS[options.methods]) if options.methods in GROUPS else options.methods.split(",")
    chosen = options.condition and options.condition.split(",")
    code, trained = 0, []
    for precision in options.precision:
        study = replace(STUDY, schedule=replace(STUDY.schedule, precision=precision, patience=options.patience))
        cells = select_runs(
            study, seeds=options.seeds, epochs=options.epochs, device=options.device, methods=labels, conditions=chosen
        )
        by_data = {cell.run.data: [other for other in cells if other.run.data == cell.run.data] for cell in cells}
        found = [Selection(study, tuple(part), options.runs[0]) for part in by_data.values()]
        code = max(code, run_queue(found, options, probe=probe))
        trained += cells
    print_results(trained, Store(options.out))
    return code


def print_results(cells: Sequence[Cell], store: Store) -> None:
    """Print a table of the runs that are finished. Runs that differ only in their precision follow each other."""
    print("| method | condition | seed | precision | test Δm | epoch | losses of the last epoch | validation Δm |")
    print("|---|---|---|---|---|---|---|---|")
    order = list(dict.fromkeys((cell.method, cell.condition.key, cell.run.seed) for cell in cells))
    for cell in sorted(cells, key=lambda cell: order.index((cell.method, cell.condition.key, cell.run.seed))):
        result = store.result(cell.run)
        if result is None:
            continue
        history = store.history(cell.run)
        curve = [_number(row["metrics"][CHANGE]) for row in history]
        losses = [math.nan if loss is None else loss for loss in history[-1]["loss"]]
        columns = [
            *(cell.method, cell.condition.key, str(cell.run.seed), cell.run.schedule.precision),
            *(_number(result["metrics"][CHANGE]), str(result["best"]["epoch"])),
            f"{math.exp(sum(map(math.log, losses)) / len(losses)):.4g}",  # a geometric mean: their scales differ
            " ".join(curve[:: max(len(curve) // 12, 1)]),
        ]
        print(f"| {' | '.join(columns)} |", flush=True)


def _number(value: float | None) -> str:
    """Return a metric as text. Those that are not finite are stored as None."""
    return "nan" if value is None else f"{value:.1f}"


def selections(study: Study, device: str, epochs: int | None = None, largest: int = LARGEST) -> list[Selection]:
    """Return the runs of the study, the most important first: each selection has its methods and seeds."""
    first = study.seeds[:1]
    parts = (
        ((MAIN, MAIN_METHODS, study.seeds),),
        ((FURTHER, FURTHER_METHODS, first),),
        ((FEATURES, GRADIENT_SPACE, first), (FURTHER_SEEDS, ("Kendall",), KENDALL_SEEDS)),  # one stack
        ((RERUN, COMPARED, first),),
        ((SANITISED, COMPARED, first),),
        ((RAW, COMPARED, first),),
    )
    select = partial(select_runs, study, epochs=epochs, device=device)
    found = []
    for part in parts:
        each = [select(seeds=seeds, methods=names, conditions=[key]) for key, names, seeds in part]
        cells = sorted(chain(*each), key=lambda cell: cell.run.seed)
        found.append(Selection(study, tuple(cells), largest))
    return found


def probe(run: Run) -> None:
    """Train a run for a few steps. A step that cannot be captured as a CUDA graph raises a warning."""
    few = spec(run.data.name, **run.data.kwargs | {"molecules": PROBED_MOLECULES})
    trainer = QM9Trainer([replace(run, data=few)])
    trainer.start_epoch()
    with trainer.kernel_settings():
        for _ in range(PROBED):
            trainer.advance()


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _precisions(text: str) -> list[str]:
    found = text.split(",")
    unknown = sorted(set(found) - set(COMPUTE_DTYPES))
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(COMPUTE_DTYPES)}, got {', '.join(unknown)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "time", "train", "queue"))
    parser.add_argument("--data", help="the data folder, which contains qm9/qm9.npz")
    parser.add_argument("--methods", default="main", help='"main", "further", "gradient", "all" or labels, with commas')
    parser.add_argument("--condition", help="keys of conditions, with commas")
    parser.add_argument("--compared", default=None, choices=("features", "parameters"))
    parser.add_argument("--molecules", type=int)
    parser.add_argument("--batch", type=int, default=120)
    parser.add_argument("--runs", type=_integers, help=f"runs in a stack: 10, or {LARGEST} for the queue")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--precision", type=_precisions, help="with commas for time and train; the study's, or fp32")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--anchor", action="store_true", help="time torch-geometric, too")
    parser.add_argument("--save", type=Path, help="folder for the results of `time`, for the table in README.md")
    parser.add_argument("--seeds")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--patience", type=int, help="stop a run after so many epochs without a better validation")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default="runs/qm9")
    parser.add_argument("--seconds", type=float, help="save and stop after so many seconds")
    add_options(parser)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    options = parser.parse_args()
    if options.data:
        os.environ["COUNTERPOISE_DATA"] = str(Path(options.data).resolve())
    if options.eager:
        os.environ["COUNTERPOISE_GRAPH"] = "0"
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    options.precision = options.precision or ["fp32" if options.command == "check" else STUDY.schedule.precision]
    if options.command == "queue":
        study = replace(STUDY, schedule=replace(STUDY.schedule, precision=options.precision[0]))
        found = selections(study, options.device, options.epochs, options.runs[0] if options.runs else LARGEST)
        raise SystemExit(run_queue(found, options, recorded=RECORDED, probe=probe))
    options.runs = options.runs or [10]
    if options.command == "train":
        raise SystemExit(train(options))
    chosen = options.methods.split(",")
    methods = GROUPS[options.methods] if options.methods in GROUPS else {name: METHODS[name] for name in chosen}
    if options.command == "check":
        if find_spec("torch_geometric"):
            compare_with_geometric(options)
        check(methods, options)
        return
    rows = measure(methods, options) + (anchor(options) if options.anchor else [])
    if options.save:
        save("qm9_stack_cuda", rows, options.save)


if __name__ == "__main__":
    main()
