"""The command `counterpoise compare`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..workflows import compare as compare_methods
from ..workflows.compare_arguments import parse_options
from .options import Device, parse_path
from .progress import ProgressDisplay
from .reproduce import ExecutorChoice
from .terminal import console, print_line


def compare(
    function: Annotated[
        str, typer.Argument(help="Training function: package.module:function or file.py:function.", show_default=False)
    ],
    tasks: Annotated[str, typer.Option(help="Names of the losses, separated by commas.", show_default=False)],
    method: Annotated[
        list[str],
        typer.Option("--method", help='A method: bpgs, "cagrad(alpha=0.2)", "bpgs + pcgrad".', show_default=False),
    ],
    better: Annotated[
        list[str],
        typer.Option(help="lower or higher for all scores, or for one: error=lower.", show_default=False),
    ],
    seeds: Annotated[str, typer.Option(help='"0-4" or "0,1,2".')] = "0-2",
    lr: Annotated[
        list[float] | None,
        typer.Option("--lr", help="A learning rate; several: the best is chosen.", show_default=False),
    ] = None,
    rate_seeds: Annotated[str, typer.Option(help="Seeds at which rates are chosen; not reported.")] = "100-101",
    choose_by: Annotated[
        str | None, typer.Option(help="Score by which rates are chosen; default: the first.", show_default=False)
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Keyword argument: name=value.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the comparison; default: file and function.", show_default=False)
    ] = None,
    device: Device = "cpu",
    executor: Annotated[ExecutorChoice, typer.Option(help="Where to train.")] = ExecutorChoice.processes,
    jobs: Annotated[int | None, typer.Option(min=1, help="Local processes; default: one per CPU.")] = None,
    address: Annotated[str | None, typer.Option(help='Ray cluster: "auto" or its address.')] = None,
    out: Annotated[Path, typer.Option(help="Folder of runs and the page.", parser=parse_path, metavar="PATH")] = Path(
        "comparison"
    ),
) -> None:
    """Compare methods in your own training function; show and write tables, ranks, figures and a page.

    The function takes a balancer, and optionally seed, lr, device and options, and returns scores as a dictionary.
    """
    try:
        done = compare_methods(
            function,
            tasks=tasks,
            methods=method,
            better=better,
            seeds=seeds,
            rates=lr or (),
            rate_seeds=rate_seeds,
            choose_by=choose_by,
            options=parse_options(option or ()),
            name=name,
            device=device,
            executor=executor.value,
            jobs=jobs,
            address=address,
            out=out,
            progress=partial(ProgressDisplay, console),
            on_report=lambda report: report.show(console),
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print_line(f"{done.files[0]} and {len(done.files) - 1} files beside it")
