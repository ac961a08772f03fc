"""Check, time and train stacks of physics-informed networks on CUDA.

python benchmarks/pinn_stack.py check               # steps of all methods on CUDA, alone and in turn, and on the CPU
python benchmarks/pinn_stack.py time --runs 150     # milliseconds per step
python benchmarks/pinn_stack.py operations          # operations per step on the CPU, by method and by part
python benchmarks/pinn_stack.py queue --seconds 540 --bring BACK   # what is not recorded yet, see run_queue.py
"""

import argparse
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from run_queue import Selection, add_options, run_queue
from timing import save
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoise.lab.engine import Recipe, Run, Store, spec
from counterpoise.lab.engine.cuda_graphs import WARM_UP, CudaGraphStep
from counterpoise.lab.engine.pinn import PinnTrainer
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.pinn import (
    CANDIDATE,
    COLUMNS,
    FURTHER,
    GRADIENT_SPACE,
    MAIN,
    METHODS,
    ONE_PASS,
    SEARCH_SEEDS,
    SEARCHED,
    SHORT,
)
from counterpoise.lab.studies.rates import chosen_rates
from counterpoise.lab.studies.select import select_runs

RESULTS = Path(__file__).parent.parent / "results"
RECORDED = (RESULTS / "physics", RESULTS / "physics" / "search")
CONSTANT_RATE = (CANDIDATE, "UPGrad", "ConFIG", "NTK", "DCGD + NTK", "Sum ×10", "LRA (mean/mean)")
"""Methods with a constant learning rate on Burgers, beside those of the published table."""
PLATE = (
    *("Sum", "GradNorm", "LRA", "SoftAdapt", "ReLoBRaLo"),
    *("LRA (mean/mean)", "First loss", "BPGS", "BPGS (gradient)", "Gradient normalisation", CANDIDATE),
)
"""Methods on the plate with the losses of the authors' code: first those of the published table."""
PROFILED = 10  # steps
WITHOUT_KERNEL = ("detach", "alias", "_unsafe_view", "promote_types", "lift_fresh")
AGREEMENT = 1e-3  # of parameters after a few steps, which are 0.03 long
PROBED = 41  # steps: gradients are measured in every tenth, and each CUDA graph has a warm-up


def make_runs(
    study: str,
    methods: dict[str, Recipe],
    count: int,
    device: str,
    *,
    interior: int = 1280,
    boundary: int = 128,
    width: int = 50,
) -> list[Run]:
    """Return `count` runs at the study's first condition, spread over the methods, equal methods side by side."""
    found = STUDIES[study]
    form = dict(found.conditions[0].options)["form"]
    data, model = spec(found.problem, form=form, interior=interior, boundary=boundary), spec("pinn", width=width)
    names = list(methods)
    each = [count // len(names) + (i < count % len(names)) for i in range(len(names))]
    runs = []
    for name, number in zip(names, each, strict=True):
        for seed in range(number):
            cell = next(iter(replace(found, methods={name: methods[name]}).grid(seeds=[seed], device=device)))
            runs.append(replace(cell.run, data=data, model=model, seed=seed))
    return runs


def is_captured(program: object) -> bool:
    """Return whether a step is replayed as a graph, or has not been called often enough for that."""
    return isinstance(program, CudaGraphStep) and not program.failed


def check(study: str, which: str, steps: int, share: float) -> int:
    """Compare a stack on CUDA with one on the CPU, and with a copy that is trained in turn on another stream.

    Args:
        study: name of the study.
        which: the methods, see `selected_methods`.
        steps: number of steps.
        share: share of the methods that must agree. Methods that divide by a vanishing loss are chaotic.

    Returns:
        The exit code: 1 if a step was not captured or CUDA differs from the CPU, 2 if only the copy differs.
    """
    methods = selected_methods(which)
    trainers = []
    for device in ("cpu", "cuda", "cuda"):
        trainers.append(PinnTrainer(make_runs(study, methods, len(methods), device, interior=128, boundary=32)))
    streams = [torch.cuda.Stream(priority=-1) for _ in trainers[1:]]
    torch.cuda.synchronize()
    for _ in range(steps):
        trainers[0].advance()
        for trainer, stream in zip(trainers[1:], streams, strict=True):
            with torch.cuda.stream(stream):
                trainer.advance()
    torch.cuda.synchronize()
    captured = all(is_captured(program) for trainer in trainers[1:] for program in trainer.programs.values())
    values = [trainer.network.value.cpu() for trainer in trainers]
    losses = [trainer.log[0].cpu() for trainer in trainers]
    differences = (values[1] - values[0]).abs().amax(1).tolist()
    relative = ((losses[1] - losses[0]) / losses[0]).abs().amax(1).tolist()
    for name, difference, loss in zip(methods, differences, relative, strict=True):
        print(f"{name:36} parameters differ by {difference:.1e}, losses by {loss:.1e}")
    copies = float((values[2] - values[1]).abs().max())
    print(f"{study}: captured {captured}, the copy differs by {copies:.1e}", flush=True)
    agreeing = sum(difference < AGREEMENT for difference in differences)
    if not captured or agreeing < share * len(methods):
        return 1
    return 0 if copies < AGREEMENT else 2


def measure(study: str, which: str, count: int, steps: int, width: int, profile: bool) -> dict[str, Any]:
    """Print the time, the memory and the number of kernels of a step, and return time and memory."""
    trainer = PinnTrainer(make_runs(study, selected_methods(which), count, "cuda", width=width))
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    for _ in range(100 * (WARM_UP + 1) + 1):  # NTK measures in every hundredth step after the first
        trainer.advance()
    torch.cuda.synchronize()
    first = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(steps):
        trainer.advance()
    torch.cuda.synchronize()
    each = (time.perf_counter() - started) / steps
    captured = all(map(is_captured, trainer.programs.values()))
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(
        f"{study} {which}: {count} runs of width {width}, {1e3 * each:.3f} ms/step, captured {captured}, "
        f"first calls {first:.1f} s, {memory:.1f} GiB, 50,000 steps in {each * 5e4:.0f} s",
        flush=True,
    )
    if profile:
        print_kernels(trainer.advance, PROFILED)
    row = {"study": study, "methods": which, "runs": count, "ms per step": 1e3 * each, "first calls s": first}
    return row | {"GiB": memory}


def print_kernels(step: Callable[[], None], steps: int, shown: int = 14) -> None:
    """Print the number of kernels per step, and those that take longest."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    table = found.key_averages()
    kernels = [event for event in table if event.device_time_total and event.cpu_time_total == 0]
    print(f"kernels per step: {sum(event.count for event in kernels) / steps:.0f}")
    for event in sorted(kernels, key=lambda event: -event.device_time_total)[:shown]:
        each = event.device_time_total / 1e3 / steps
        print(f"  {each:8.3f} ms/step  {event.count / steps:7.1f} calls  {event.key[:90]}")


class OperationCounter(TorchDispatchMode):
    """Count the operations that launch a kernel on a device, by part of a step."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.part, self.counts = "other", Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if not (func.is_view or name in WITHOUT_KERNEL or name.startswith(("empty", "new_empty"))):
            self.counts[self.part] += 1
        return func(*args, **kwargs or {})

    def attribute(self, owner: Any, name: str, part: str) -> None:
        """Attribute the operations of a method to a part."""
        method = getattr(owner, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            before, self.part = self.part, part
            try:
                return method(*args, **kwargs)
            finally:
                self.part = before

        setattr(owner, name, counted)


def count_operations(study: str, methods: dict[str, Recipe], due: bool) -> Counter[str]:
    """Return the operations of a step with six runs of each method. What remains as "other" are the balancers.

    Args:
        study: name of the study.
        methods: the methods of the stack.
        due: whether methods measure gradients in this step.
    """
    trainer = PinnTrainer(make_runs(study, methods, 6 * len(methods), "cpu", interior=8, boundary=4, width=4))
    pattern, counter = [due] * len(trainer.schedules), OperationCounter()
    trainer.step((*[True] * len(pattern), False))
    for name, part in {"draw": "points", "task_gradients": "network", "errors": "evaluation"}.items():
        counter.attribute(trainer.workload, name, part)
    for name, part in {"_finish_step": "step end", "_update": "update", "_keep_best": "best network"}.items():
        counter.attribute(trainer, name, part)
    with counter:
        trainer.step((*pattern, True))
        trainer.workload.errors(trainer.best_value)
    return counter.counts


def print_operations(study: str, which: str) -> None:
    """Print the operations of each method alone, and of a stack of all methods.

    On CUDA there are fewer, because layers, random numbers and BPGS are single kernels.
    """
    methods = selected_methods(which)
    print(f"{'balancer and its optimiser':36} step  measuring")
    shared = count_operations(study, {"Sum": METHODS["Sum"]}, False)["update"]
    for name, recipe in methods.items():
        counts = [count_operations(study, {name: recipe}, due) for due in (False, True)]
        found = [count["other"] + count["step end"] + count["update"] - shared for count in counts]
        print(f"{name:36} {found[0]:4} {found[1]:10}")
    for due in (False, True):
        parts = count_operations(study, methods, due)
        listed = ", ".join(f"{part.replace('other', 'balancers')} {count}" for part, count in parts.items())
        print(f"{len(methods)} methods{', measuring' if due else ''}: {sum(parts.values())} operations; {listed}")


def selected_methods(which: str) -> dict[str, Recipe]:
    """Return the methods of a group, or those with the given labels, separated by commas."""
    groups = {"one-pass": ONE_PASS, "gradient": GRADIENT_SPACE, "sum": {"Sum": ONE_PASS["Sum"]}, "all": dict(METHODS)}
    return groups.get(which) or {label: METHODS[label] for label in which.split(",")}


def train(options: argparse.Namespace) -> int:
    """Train a study, all rates at the seeds of the choice first, and print the errors. Return the exit code."""
    found, store = STUDIES[options.study], Store(options.out)
    groups = {"one-pass": list(ONE_PASS), "gradient": list(GRADIENT_SPACE), "all": None}
    labels = groups[options.methods] if options.methods in groups else options.methods.split(",")
    cells = select_runs(found, seeds=options.seeds, epochs=options.epochs, device=options.device, methods=labels)
    code = run_queue([Selection(found, tuple(cells))], options, probe=probe)
    for (_, method), rate in chosen_rates(found, cells, store.result).items():
        results = [store.result(c.run) for c in cells if c.method == method and c.run.network_lr == rate]
        errors = [r["metrics"]["rel_l2"] for r in results[len(found.rate_seeds) :] if r is not None]
        print(f"{method:36} {rate:g}  {' '.join(f'{e:.4f}' if e is not None else 'nan' for e in errors)}")
    return code


def selections(device: str, epochs: int | None = None) -> list[Selection]:
    """Return the runs of the studies, the most important first."""

    def select(
        study: str, methods: Iterable[str], condition: str = MAIN, seeds: Iterable[int] | None = None
    ) -> Selection:
        found = STUDIES[study]
        cells = select_runs(found, seeds=seeds, epochs=epochs, device=device, methods=methods, conditions=[condition])
        return Selection(found, tuple(cells))

    plate = [name for name in (*COLUMNS, *SEARCHED) if name not in ONE_PASS]
    return [
        *(select(f"pinn-{name}", ONE_PASS) for name in ("burgers", "klein-gordon", "helmholtz")),
        *(select(f"pinn-{name}", SEARCHED, seeds=SEARCH_SEEDS) for name in ("helmholtz", "burgers")),
        *(select("pinn-burgers", COLUMNS, condition) for condition in ("authors' code", "constant rate")),
        select("pinn-burgers", CONSTANT_RATE, "constant rate"),
        select("pinn-klein-gordon", COLUMNS, "authors' points"),
        select("pinn-kirchhoff", ONE_PASS),
        select("pinn-kirchhoff", PLATE, "authors' code"),
        select("pinn-kirchhoff", dict.fromkeys(plate)),
        *(select(f"pinn-{name}", FURTHER, SHORT) for name in ("klein-gordon", "burgers", "helmholtz")),
    ]


def probe(run: Run) -> None:
    """Train a run for a few steps. A step that cannot be captured as a CUDA graph raises a warning."""
    trainer = PinnTrainer([run])
    for _ in range(PROBED):
        trainer.advance()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "time", "operations", "train", "queue"))
    parser.add_argument("--study", default="pinn-helmholtz", help="`time` takes several, with commas")
    parser.add_argument("--methods", default="one-pass", help='"one-pass", "gradient", "all", "sum" or labels')
    parser.add_argument("--runs", default="150", help="number of runs in a stack; several, with commas")
    parser.add_argument("--save", type=Path, help="folder for the results of `time`, for the table in README.md")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.75, help="share of the methods that must agree in `check`")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--seeds")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--out", default="runs/pinn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, help="save and stop after so many seconds")
    add_options(parser)
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--tf32", action="store_true")
    options = parser.parse_args()
    if options.eager:
        os.environ["COUNTERPOISE_GRAPH"] = "0"
    torch.backends.cuda.matmul.allow_tf32 = options.tf32
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    if options.command == "queue":
        found = selections(options.device, options.epochs)
        raise SystemExit(run_queue(found, options, recorded=RECORDED, probe=probe))
    if options.command == "check":
        raise SystemExit(check(options.study, options.methods, options.steps, options.share))
    if options.command == "operations":
        print_operations(options.study, options.methods)
    elif options.command == "train":
        raise SystemExit(train(options))
    else:
        rows = [
            measure(study, options.methods, int(runs), options.steps, options.width, options.profile)
            for study in options.study.split(",")
            for runs in options.runs.split(",")
        ]
        if options.save:
            save("pinn_stack_cuda", rows, options.save)


if __name__ == "__main__":
    main()
