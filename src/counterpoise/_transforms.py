"""Refuse the function transforms of torch, which a balancer does not support."""

import torch


def refuse_transforms(method: str) -> None:
    """Raise an error inside `torch.vmap`, `torch.func.grad` and the like.

    Raises:
        RuntimeError: If a transform is active. The state of the balancer is unchanged then.
    """
    # Private, but torch itself asks this in every call of an autograd.Function. Dynamo need not trace it.
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise RuntimeError(
            f"{method} cannot be called inside torch.vmap, torch.func.grad or another transform of torch.func, because "
            "a balancer updates its state and runs autograd itself. To balance several models at once, pass "
            "batch_shape= to the balancer and losses of shape (*batch_shape, T). For gradients, compute the losses "
            "outside of the transform, with torch.func.functional_call if needed, and call balancer.backward(losses)."
        )
