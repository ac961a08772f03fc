"""Small runs, and helpers that train and compare runs, for the tests of the engine."""

from dataclasses import replace
from pathlib import Path

from counterpoise.lab.engine import Run, RunBatch, Trainer, make_run_batches, spec
from counterpoise.lab.engine.store import CIRCUMSTANCES
from counterpoise.lab.studies.base import BPGS, KENDALL, SYNTHETIC_SCHEDULE


def small_batches(epochs: int = 3) -> list[RunBatch]:
    """Return four batches of two runs each: two methods with four seeds."""
    schedule = replace(SYNTHETIC_SCHEDULE, epochs=epochs)
    data = spec("scale-stress", scale=10.0)
    runs = [Run("test", data, spec("mlp"), method, seed, schedule) for method in (BPGS, KENDALL) for seed in range(4)]
    return make_run_batches(runs, largest=2)


def train_to_end(*runs: Run) -> Trainer:
    """Train runs together and return their trainer."""
    trainer = Trainer(runs)
    while not trainer.done:
        trainer.train_epoch()
    return trainer


def result_files(root: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder.

    Circumstances, which differ between equal runs, and temporary files of killed processes are left out.
    """
    files = (p for p in sorted(root.rglob("*")) if p.is_file() and p.name != CIRCUMSTANCES and p.name[0] != ".")
    return {str(p.relative_to(root)): p.read_bytes() for p in files}
