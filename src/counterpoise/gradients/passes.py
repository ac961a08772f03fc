"""Choosing the backward passes: a loop, one batched pass or lean passes, on parameters, at or through features."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .graph import READS_GRAPH, has_bypass, has_nested, other_leaves, reaches
from .lean import LeanPasses, free_memory
from .retained import check_retained
from .sharding import is_sharded
from .task_gradients import UNREACHED, batched_gradients, feature_gradients, loop_gradients, propagate_to_parameters
from .types import TaskGradients, TaskRoot

Passes = Literal["auto", "loop", "batched", "lean"]
# passes="auto" uses lean passes on a CPU from this number of tasks on, or for task gradients with more elements than
# this in total. It uses them for fewer tasks if most parameters belong to linear layers that are wide compared with the
# batch: from 6 tasks on, or from 4 tasks and 2²³ elements on.
MIN_LEAN_TASKS = 16
MAX_HELD_ELEMENTS = 1 << 28
MIN_WIDE_TASKS, MIN_LARGE_TASKS, MIN_LARGE_ELEMENTS = 6, 4, 1 << 23
# On a GPU, where lean passes may take twice as long as a loop, it uses them if all task gradients together would take
# more than this share of the memory that is free, and more bytes than this.
MAX_SHARE_OF_FREE_MEMORY, MIN_HELD_BYTES = 0.5, 1 << 30
# Otherwise it uses batched passes through features for shared networks up to this size, and a loop for all others.
MAX_BATCHED_PARAMETERS = 1 << 20
BATCHED_NOTE = (
    'passes="batched" computes the gradients of all tasks in one pass of torch.vmap, which does not support every '
    'operation: passes="loop" does not need it, and passes="auto" falls back to a loop'
)


class ComparisonTargets(NamedTuple):
    """The tensors on which tasks are compared, and the features through which gradients reach them (may be empty)."""

    targets: Sequence[Tensor]
    features: Sequence[Tensor]

    @classmethod
    def of(
        cls, shared: Iterable[Tensor] | None, features: Tensor | Sequence[Tensor] | None, method: str
    ) -> ComparisonTargets:
        """Validate the arguments `shared` and `features` of `backward`."""
        given = [features] if isinstance(features, Tensor) else list(features or ())
        unique = list({id(z): z for z in given}.values())
        if shared is None and not unique:
            raise ValueError(
                f"{method}.backward needs shared=, the parameters that all tasks share, or features=, the "
                f"representation that all heads take as input"
            )
        for z in unique:
            if not isinstance(z, Tensor):
                raise TypeError(f"features must be tensors, got {z!r}")
            if not z.requires_grad:
                raise ValueError("features do not require a gradient: pass them as the shared network returns them")
            if z.is_complex():
                raise ValueError(
                    f"features contain a complex tensor of shape {tuple(z.shape)}, expected real ones: compute the "
                    f"heads from torch.view_as_real(features), and pass that"
                )
        if shared is None:
            return cls(unique, unique)
        return cls(shared_parameters(shared), unique)

    @property
    def at_features(self) -> bool:
        """Whether tasks are compared at the features rather than on parameters."""
        return self.targets is self.features

    @property
    def sharded(self) -> bool:
        """Whether any target is sharded (FSDP)."""
        return any(is_sharded(target) for target in self.targets)


class BackwardPasses:
    """Compute the gradients of all tasks, and cache what has been checked about the network."""

    def __init__(self) -> None:
        self.batches: bool | None = None  # whether batched passes work; None before the first
        self.lean = LeanPasses()
        self.refuses_lean = False  # whether passes="auto" must not use lean passes for this network
        self.without_bypass: set[int] = set()  # tasks known to reach the shared network through the features only
        self.not_nested = False  # whether no feature is known to be computed from another one
        self.checked = False  # whether `check` has passed

    def compute(
        self,
        roots: Sequence[TaskRoot],
        place: ComparisonTargets,
        keep: bool,
        passes: Passes,
        *,
        heads: bool,
        rows: bool,
    ) -> TaskGradients:
        """Return the gradients on the targets and, with `heads`, on all other leaves.

        Lean passes return the Gram matrix instead, and a function that combines the gradients.

        Args:
            roots: the start of each task's backward pass.
            place: the tensors on which tasks are compared.
            keep: keep the graph for another pass.
            passes: how to compute the gradients.
            heads: also return the gradients of all other leaves, instead of accumulating them.
            rows: the caller needs the gradients themselves, not only their Gram matrix.
        """
        if not roots:  # other ranks may have some
            return TaskGradients(list(place.targets), (), [], [], [])
        if len(roots) > 1 and check_retained(self, roots, place.targets):
            self.batches = self.lean.batches = False  # vmap does not support compiled functions
            self.refuses_lean = True  # a compiled function computes the gradients of all its parameters in each pass
        self._check_nesting(place.features)
        if place.at_features:
            return self._at_features(roots, place.features, keep)
        chosen = self._choose(roots, place, passes, rows)
        if chosen == "lean":
            lean = self._lean(roots, place, keep, passes, heads)
            if lean is not None:
                return lean
        if chosen == "batched":
            try:
                # If the first batched pass fails, the loop still needs the graph.
                grads = _on_parameters(roots, place, keep or self.batches is None, batched=True, heads=heads)
            except RuntimeError as error:
                worked, self.batches = self.batches, False
                if passes == "batched" or worked:  # the pass has freed the graph
                    error.add_note(BATCHED_NOTE)
                    raise
            else:
                self.batches = True
                return grads
        return _on_parameters(roots, place, keep, batched=False, heads=heads, gram=not rows)

    def check(self, roots: Sequence[TaskRoot], place: ComparisonTargets, passes: Passes) -> None:
        """Raise the errors of `compute` about its arguments in a step that compares no tasks, if it is the first."""
        if self.checked or not roots:
            return
        self._check_nesting(place.features)
        outputs = [root.loss for root in roots]
        if place.at_features:
            self._check_bypass(roots, place.features)
            if not reaches(outputs, place.features):
                raise ValueError(UNREACHED)
        else:
            self._choose(roots, place, passes, rows=False)
            _leaves_of_heads(outputs, place)
        self.checked = True

    def _check_nesting(self, features: Sequence[Tensor]) -> None:
        if len(features) < 2 or self.not_nested:
            return
        if has_nested(features):
            raise ValueError(
                "one of the features= is computed from another one, so its gradient would count twice: pass only the "
                "earlier one, or compare on shared= alone"
            )
        self.not_nested = True

    def _at_features(self, roots: Sequence[TaskRoot], features: Sequence[Tensor], keep: bool) -> TaskGradients:
        self._check_bypass(roots, features)
        return feature_gradients(roots, features, keep)

    def _check_bypass(self, roots: Sequence[TaskRoot], features: Sequence[Tensor]) -> None:
        unchecked = [root.loss for root in roots if root.slot not in self.without_bypass]
        if unchecked and has_bypass(unchecked, features):
            raise ValueError(
                "a task reaches the network before features= without passing through them: compare on shared= alone, "
                "or add the tensors through which it passes to features=, unless one is computed from another"
            )
        self.without_bypass.update(root.slot for root in roots)

    def _choose(
        self, roots: Sequence[TaskRoot], place: ComparisonTargets, passes: Passes, rows: bool
    ) -> Literal["loop", "batched", "lean"]:
        """Return how to compute the gradients of the tasks on parameters."""
        if place.sharded and (passes in ("batched", "lean") or place.features):
            refused = passes if passes == "lean" else "batched"
            raise ValueError(
                f"sharded parameters (FSDP) support neither features= nor passes={refused!r}, because hooks collect "
                f"their gradients: pass shared= alone"
            )
        if passes == "lean" and rows:
            raise ValueError(
                "passes='lean' does not hold task gradients, so they cannot be averaged over ranks before they are "
                "compared: pass ranks='local', or passes='loop'"
            )
        if passes != "auto":
            return "loop" if passes == "lean" and len(roots) < 2 else passes
        size = sum(target.numel() for target in place.targets)
        possible = not rows and not place.sharded and not self.refuses_lean and READS_GRAPH
        if possible and self._prefers_lean(roots, place.targets, len(roots) * size):
            return "lean"
        small = size <= MAX_BATCHED_PARAMETERS
        return "batched" if small and place.features and self.batches is not False else "loop"

    def _prefers_lean(self, roots: Sequence[TaskRoot], targets: Sequence[Tensor], elements: int) -> bool:
        """Return whether lean passes save time or much memory; `elements` is the size of all task gradients."""
        tasks, device = len(roots), targets[0].device.type
        if device != "cpu":
            return device == "cuda" and tasks > 1 and exceeds_free_memory(targets, tasks)
        if tasks >= MIN_LEAN_TASKS or (tasks > 1 and elements > MAX_HELD_ELEMENTS):
            return True
        large = tasks >= MIN_LARGE_TASKS and elements >= MIN_LARGE_ELEMENTS
        return (tasks >= MIN_WIDE_TASKS or large) and self.lean.reads_outputs(roots, targets)

    def _lean(
        self, roots: Sequence[TaskRoot], place: ComparisonTargets, keep: bool, passes: Passes, heads: bool
    ) -> TaskGradients | None:
        """Return the result of lean passes, or None if `passes="auto"` must run a loop instead."""
        _leaves_of_heads([root.loss for root in roots], place)  # for its error
        first = not self.lean.checked
        try:
            grads = self.lean.compute(roots, place.targets, keep, aggregated=heads)
        except torch.cuda.OutOfMemoryError:
            raise  # a loop would need more
        except RuntimeError:
            if passes == "auto" and first:  # the graph has been kept
                self.refuses_lean = True
                return None
            raise
        if grads is None:
            raise ValueError(UNREACHED)
        return grads


def exceeds_free_memory(targets: Sequence[Tensor], tasks: int) -> bool:
    """Return whether the gradients of all tasks would take too much of the memory of the targets' GPU.

    At the start of the backward pass, the network and its activations are part of the memory that is not free.
    """
    needed = tasks * sum(target.nbytes for target in targets)
    return needed > MIN_HELD_BYTES and needed > MAX_SHARE_OF_FREE_MEMORY * free_memory(targets[0].device)


def check_lean(passes: Passes, method: str, *, rows: bool, replicas: bool) -> None:
    """Raise an error if lean passes are requested for a method that does not support them.

    Args:
        passes: how to compute the gradients.
        method: the name of the method.
        rows: it needs the task gradients.
        replicas: it balances several replicas at once.
    """
    if passes != "lean":
        return
    if replicas:
        raise ValueError("passes='lean' does not support batch_shape=: pass passes='loop' or passes='batched'")
    if rows:
        raise ValueError(
            f"{method} needs the task gradients, and passes='lean' computes only their inner products: pass "
            f"passes='loop' or passes='batched'"
        )
    if not READS_GRAPH:
        raise ValueError("passes='lean' needs torch 2.5 or newer: pass passes='loop'")


def _on_parameters(
    roots: Sequence[TaskRoot],
    place: ComparisonTargets,
    keep: bool,
    *,
    batched: bool,
    heads: bool,
    gram: bool = False,
) -> TaskGradients:
    outputs = [root.loss for root in roots]
    if _leaves_of_heads(outputs, place) is not None:
        grads = feature_gradients(roots, place.features, keep)
        return propagate_to_parameters(grads, place.features, place.targets, batched, keep)
    leaves = other_leaves(outputs, place.targets) if batched or heads else []
    if batched:
        return batched_gradients(roots, place.targets, leaves, keep)
    return loop_gradients(roots, place.targets, leaves, keep, gram=gram)


def _leaves_of_heads(outputs: Sequence[Tensor], place: ComparisonTargets) -> list[Tensor] | None:
    """Return the leaves after the features, or None if gradients cannot be computed through the features.

    Leaves before the features that are not targets would get no gradient from such a pass.
    """
    if not place.features or other_leaves(place.features, place.targets):
        return None
    leaves = other_leaves(outputs, place.features)
    if {id(leaf) for leaf in leaves} & {id(target) for target in place.targets}:
        raise ValueError("a task reaches a shared parameter without passing through features=: leave features= out")
    return leaves


def shared_parameters(shared: Iterable[Tensor]) -> list[Tensor]:
    """Validate the argument `shared`; drop frozen parameters and duplicates (tied weights)."""
    given = [shared] if isinstance(shared, Tensor) or not isinstance(shared, Iterable) else list(shared)
    if not given:
        raise ValueError(
            "shared is empty: a generator such as encoder.parameters() can be used only once, so call it in every step "
            "or pass list(encoder.parameters())"
        )
    unique: dict[int, Tensor] = {}
    for parameter in given:
        if not isinstance(parameter, Tensor):
            raise TypeError(
                f"shared must contain the parameters that all tasks share, got {type(parameter).__name__}: "
                f"pass model.encoder.parameters(), not the module or its named parameters"
            )
        if not parameter.requires_grad:
            continue
        if not parameter.is_leaf:
            raise ValueError(
                f"shared must contain parameters, got the result of {parameter.grad_fn}: to compare gradients at a "
                f"representation, pass it as features="
            )
        if parameter.is_complex():
            raise ValueError(
                f"shared contains a complex parameter of shape {tuple(parameter.shape)}, expected real ones: store it "
                f"as torch.view_as_real(parameter), or leave it out of shared="
            )
        unique[id(parameter)] = parameter
    if not unique:
        raise ValueError("shared contains no parameter that requires a gradient: pass those that all tasks share")
    return list(unique.values())
