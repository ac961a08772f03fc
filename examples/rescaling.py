"""Run one column of the paper's pure-rescaling study from Python.

    python examples/rescaling.py

Three methods are trained as one stack at one seed, with one of five losses multiplied by 1000. `counterpoise reproduce
rescaling` runs the whole study.
"""

from counterpoise.lab.engine import Trainer
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.select import select_cells


def main() -> None:
    study = STUDIES["rescaling"]
    cells = select_cells(study, study.grid(seeds=[42]), ["Kendall", "UWSO", "BPGS"], ["×1000"])
    trainer = Trainer([cell.run for cell in cells])
    while not trainer.done:
        trainer.train_epoch()
    for cell, result in zip(cells, trainer.results(), strict=True):
        print(f"{cell.method:<8} macro score {result['macro']:.3f}")


if __name__ == "__main__":
    main()
