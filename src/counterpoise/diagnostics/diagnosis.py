"""The result of monitoring: measurements, the verdict, and advice."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from .._files import atomic_path
from .._json import replace_nonfinite
from .advice import Verdict, decide, recommend, remarks
from .display import draw_figure, print_table
from .measurements import Measurements


@dataclass(frozen=True)
class Diagnosis(Measurements):
    """The measurements of a monitored training loop, and the advice that follows from them.

    `Monitor.diagnosis` creates it. Tuples with one entry per task follow the order of `tasks`.

    Attributes:
        tasks (tuple of str): Names of the tasks.
        steps (int): Number of monitored steps.
        losses (tuple of float): Median loss of each task; NaN for a task that never had one.
        decades (tuple of float): log10 of the largest over the smallest loss, in each step. An absent task counts with
            its last loss, here and in the spreads of the gradients.
        std (tuple of float): Standard deviation of the log-losses, in each step.
        absent (tuple of float): Share of steps without the task.
        nonpositive (tuple of float): Share of steps in which its loss was 0 or negative.
        gradient_checks (int): How often task gradients were compared.
        norms (tuple of float): Median norm of each task gradient; empty if gradients were not compared.
        cosines (tuple of tuple of float): Mean cosine of each pair of task gradients.
        negative (float or None): Share of task pairs with a negative cosine.
        conflict (float or None): Share of task pairs with a cosine below −0.1.
        abs_z_over_tau (tuple of float): |z|/τ of each task in the chart of BPGS; empty for other methods.
        slope (float or None): Smallest σ(1 − σ) in that chart; ¼ at its centre.
        saturation_edge (float): |z|/τ above which θ has little effect on its task.
        methods (tuple of str): Classes of the balancer and of its weighting.
        in_gradient_space (bool): Whether the balancer compares task gradients.
        gradients_requested (bool): Whether `shared=` was given.
        below_zero (tuple of float): Share of steps in which the loss of each task was negative.
        one_task (float): Share of steps with a single task.
        fallen (tuple of float): Decades by which each loss fell, from the first steps to the last quarter; NaN for a
            task with a negative loss or fewer than four losses.
        recent_fall (tuple of float): Decades by which each loss fell from the third quarter of the steps to the last.
        vanishing (tuple of str): Tasks whose loss fell by two decades or more, below all others, while the other losses
            stand still. A method that divides by the losses gives them all the weight.
        weights (tuple of float): Median share of each task in the balancer's weights, over the steps that compare at
            least two tasks; empty without a balancer.
        weight_decades (tuple of float): log10 of the largest over the smallest weight, in each step.
        collapse_steps (int): Number of last steps in which the vanishing tasks had more than 0.999 of the weight; 0 if
            there was no collapse.
        memory (bool): Whether the balancer remembers the losses of absent tasks (`memory=True`).
        max_ratio (float or None): The balancer's limit of the ratio between two weights.
        norm_spread (float or None): Decades between the largest and the smallest gradient norm, median over the checks.
        norm_spread_over_losses (float or None): The same, with each norm divided by its loss, as a method does whose
            weights follow 1/L. If this is larger than `norm_spread`, such a method unbalances the gradients.
        norm_spread_weighted (float or None): The same, with each norm multiplied by the balancer's weight.
        fixed (mapping of str to float): Factors of the losses that the balancer adds without balancing them.
        fixed_ratio (float or None): The norm of their gradient over that of the weighted sum of the balanced losses,
            median over the first checks.

    Example:
        >>> import counterpoise as cp
        >>> with cp.diagnose(["seg", "depth"]) as monitor:
        ...     _ = monitor(torch.tensor([300.0, 0.1]))
        >>> diagnosis = monitor.diagnosis
        >>> diagnosis.verdict, round(diagnosis.spread, 2)
        ('scale', 3.48)
        >>> diagnosis.advice[0].partition(". ")[0]
        'Scale dominates: the losses are 3.5 decades apart'
    """

    @property
    def verdict(self) -> Verdict:
        """What dominates: "collapse" of training to some tasks, "scale", "conflict", "both" or "neither"."""
        return decide(self)

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences that explain the verdict and recommend a method; the most important one first."""
        return (recommend(self), *remarks(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all measurements, the verdict and the advice to a JSON file.

        Args:
            path (str or os.PathLike): The file, which is replaced atomically. NaN is written as null.
        """
        derived = {"spread": self.spread, "drift": self.drift, "verdict": self.verdict, "advice": self.advice}
        text = json.dumps(replace_nonfinite(asdict(self) | derived), indent=1, allow_nan=False) + "\n"
        with atomic_path(Path(path)) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def print(self) -> None:
        """Print a table and the advice; the advice alone if rich is not installed."""
        print_table(self, self.advice)

    def figure(self, path: str | os.PathLike[str]) -> None:
        """Draw the spread of losses and weights, the scale of each task, and the cosines of the task gradients.

        Requires matplotlib.

        Args:
            path (str or os.PathLike): The file; its extension determines the format.
        """
        draw_figure(self, self.advice, path)

    def __str__(self) -> str:
        return "\n".join(self.advice)
