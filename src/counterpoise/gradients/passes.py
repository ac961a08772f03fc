"""How task gradients come about: a backward pass each or all in one, on parameters, at features or through them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from .. import gradients
from . import TaskGradients, TaskRoot
from .retained import check_retained

Passes = Literal["auto", "loop", "batched"]
SMALL_NETWORK = 1 << 20  # shared parameters up to which batches through features are worth it


class ComparisonTargets(NamedTuple):
    """Where tasks are compared, and the representation through which their gradients get there (empty: unknown)."""

    targets: Sequence[Tensor]
    features: Sequence[Tensor]

    @classmethod
    def of(
        cls, shared: Iterable[Tensor] | None, features: Tensor | Sequence[Tensor] | None, method: str
    ) -> ComparisonTargets:
        given = [features] if isinstance(features, Tensor) else list(features or ())
        through = list({id(z): z for z in given}.values())
        if shared is None and not through:
            raise ValueError(
                f"{method}.backward needs shared=, the parameters that all tasks share, or features=, the "
                f"representation from which all heads start"
            )
        for z in through:
            if not isinstance(z, Tensor):
                raise TypeError(f"features hold {z!r}, expected tensors")
            if not z.requires_grad:
                raise ValueError("features do not require a gradient: pass them as the shared network returns them")
        if shared is None:
            return cls(through, through)
        return cls(gradients.shared_parameters(shared), through)

    @property
    def at_features(self) -> bool:
        return self.targets is self.features

    @property
    def sharded(self) -> bool:
        return any(gradients.is_sharded(target) for target in self.targets)


class BackwardPasses:
    """Takes the gradients of all tasks, and remembers what it saw of the network on the way."""

    def __init__(self) -> None:
        self.batches: bool | None = None  # whether batched passes work; None before the first
        self.apart: set[int] = set()  # tasks that were seen to reach the rest through the features alone
        self.unnested = False  # whether features were seen not to be made of each other

    def compute(
        self, roots: Sequence[TaskRoot], place: ComparisonTargets, keep: bool, passes: Passes, *, heads: bool
    ) -> TaskGradients:
        """Gradients there, and with `heads` those of all other leaves. `keep`: the graph is needed again."""
        if not roots:  # other ranks have some
            return TaskGradients(list(place.targets), (), [], [], [])
        if len(roots) > 1 and check_retained(self, roots, place.targets):
            self.batches = False  # vmap does not know compiled functions
        self._check_features(place.features)
        if place.at_features:
            return self._at_features(roots, place.features, keep)
        if self._batched(place, passes):
            try:
                # A pass that turns out not to batch must leave the graph for the loop.
                grads = _on_parameters(roots, place, keep or self.batches is None, batched=True, heads=heads)
            except RuntimeError:
                worked, self.batches = self.batches, False
                if passes == "batched" or worked:  # the pass has freed the graph
                    raise
            else:
                self.batches = True
                return grads
        return _on_parameters(roots, place, keep, batched=False, heads=heads)

    def _check_features(self, features: Sequence[Tensor]) -> None:
        if len(features) < 2 or self.unnested:
            return
        if gradients.has_nested(features):
            raise ValueError(
                "one of the features= is made of another, so that its gradient would count twice: pass the earlier one "
                "alone, or compare on shared= alone"
            )
        self.unnested = True

    def _at_features(self, roots: Sequence[TaskRoot], features: Sequence[Tensor], keep: bool) -> TaskGradients:
        outputs = [root.loss for root in roots]
        new = [root.loss for root in roots if root.slot not in self.apart]
        if new and gradients.has_bypass(new, features):
            raise ValueError(
                "a task reaches what stands before features= without passing through them: compare on shared= alone, "
                "or add the tensors through which it passes to features=, if none of them is made of another"
            )
        self.apart.update(root.slot for root in roots)
        return gradients.at_features(roots, features, gradients.other_leaves(outputs, features), keep)

    def _batched(self, place: ComparisonTargets, passes: Passes) -> bool:
        if place.sharded and (passes == "batched" or place.features):
            raise ValueError(
                "sharded parameters (FSDP) get their gradients by hooks: pass shared= alone, and no batches"
            )
        if passes != "auto":
            return passes == "batched"
        small = sum(target.numel() for target in place.targets) <= SMALL_NETWORK
        return small and bool(place.features) and self.batches is not False


def _on_parameters(
    roots: Sequence[TaskRoot], place: ComparisonTargets, keep: bool, *, batched: bool, heads: bool
) -> TaskGradients:
    outputs = [root.loss for root in roots]
    # Whatever else stands before the features would get nothing by way of them.
    if place.features and not gradients.other_leaves(place.features, place.targets):
        leaves = gradients.other_leaves(outputs, place.features)
        if {id(leaf) for leaf in leaves} & {id(target) for target in place.targets}:
            raise ValueError("a task reaches a shared parameter without passing through features: leave them out")
        grads = gradients.at_features(roots, place.features, leaves, keep)
        return gradients.through_features(grads, place.features, place.targets, batched, keep)
    leaves = gradients.other_leaves(outputs, place.targets) if batched or heads else []
    return (gradients.by_batch if batched else gradients.by_loop)(roots, place.targets, leaves, keep)
