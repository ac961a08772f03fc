"""Weights from the sizes of the task gradients: gradient normalisation, learning-rate annealing (LRA), NTK weights."""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from ._masking import clamp_to_dtype, masked_softmax, output_dtype, working_dtype
from ._outliers import limit_outliers

LRAForm = Literal["max-weighted-mean", "max-mean", "mean-mean"]

TRACE_FLOOR = 1e-12  # lower bound of a trace relative to the sum of all, which bounds the NTK weights


def update_log_norms(log_norms: Tensor, norms: Tensor, *, beta: float = 0.9) -> Tensor:
    """Update the running mean of the logarithms of gradient norms, β log n̄_i + (1 − β) log n_i.

    The first norm of a task starts its mean, so that the mean needs no correction for its start.

    Args:
        log_norms (Tensor): Running means, shape (…, T). NaN for a task without a norm so far.
        norms (Tensor): Gradient norms, shape (…, T). NaN for an absent task.
        beta (float, optional): Decay rate β of the mean. Default: 0.9.

    Returns:
        Tensor: The new means, shape (…, T), in the precision of the old ones. Tasks that are absent or have a zero
        gradient keep theirs.

    Example:
        >>> nan = float("nan")
        >>> update_log_norms(torch.tensor([0.0, nan, 1.0]), torch.tensor([10.0, 10.0, nan]), beta=0.5)
        tensor([1.1513, 2.3026, 1.0000])
    """
    old, new = (t.detach().to(working_dtype(norms.device)) for t in (log_norms, norms))
    measured = torch.isfinite(new) & (new > 0)
    log = torch.where(measured, new, 1.0).log()
    mean = torch.where(torch.isfinite(old), beta * old + (1 - beta) * log, log)
    return torch.where(measured, mean, old).to(output_dtype(log_norms))


def gradient_normalise_weights(log_norms: Tensor, *, exponent: float = 1.0, shares: Tensor | None = None) -> Tensor:
    """Compute w_i ∝ r_i n_i^{−p} with Σw = T, from the logarithms of the gradient norms n_i.

    With p = 1, the contributions w_i n_i are proportional to the shares r_i, and multiplying a loss by a constant does
    not change its contribution relative to the others. p = 0 gives the shares, p = 2 the weights of GradNormProxy. Some
    codes divide by a mean of the norms instead: w_i = mean_j(n_j) / n_i in jaxpi, and shares of unit norm in EnCodec's
    balancer. That is a factor common to all tasks, which the normalisation Σw = T cancels.

    Args:
        log_norms (Tensor): Logarithms of the gradient norms, shape (…, T). Not finite for a task without a known norm.
        exponent (float, optional): Exponent p. Default: 1.0.
        shares (Tensor, optional): Shares r_i of the tasks, not negative, broadcastable to (…, T). None means equal
            shares. Default: None.

    Returns:
        Tensor: The weights, shape (…, T). A task without a known norm gets its share, which is 1 if all are equal, and
        the others divide the rest among them. Absent tasks get weight 0 in :func:`weighted_sum`.

    Example:
        >>> gradient_normalise_weights(torch.tensor([1.0, 3.0]).log())
        tensor([1.5000, 0.5000])

    References:
        Wang et al., An Expert's Guide to Training Physics-informed Neural Networks. https://arxiv.org/abs/2308.08468
        Défossez et al., High Fidelity Neural Audio Compression. https://arxiv.org/abs/2210.13438
    """
    x = log_norms.detach().to(working_dtype(log_norms.device))
    known = torch.isfinite(x)
    if shares is None:
        parts = torch.ones_like(x)
    else:
        shares = shares.detach().to(x).expand_as(x)
        parts = shares * (x.shape[-1] / shares.sum(-1, keepdim=True))
    logits = parts.clamp_min(torch.finfo(x.dtype).tiny).log() - exponent * x
    weights = masked_softmax(logits, known & (parts > 0)) * (parts * known).sum(-1, keepdim=True)
    return torch.where(known, weights, parts).to(output_dtype(log_norms))


def lra_weights(
    previous: Tensor,
    ref_max: Tensor | None,
    means: Tensor,
    *,
    reference: int,
    alpha: float = 0.1,
    form: LRAForm = "max-weighted-mean",
) -> Tensor:
    """Compute the weights of learning-rate annealing, λ_i ← (1 − α) λ_i + α λ̂_i.

    λ̂_i compares the gradient of the reference loss, the residual of a differential equation, with that of L_i:

    - `"max-weighted-mean"`: max|∇L_ref| / mean|λ_i ∇L_i|, the form of the authors' code. The weight settles near the
      square root of max|∇L_ref| / mean|∇L_i|.
    - `"max-mean"`: max|∇L_ref| / mean|∇L_i|, the equation of the paper. If a loss is solved early and its gradient
      vanishes, the weight grows without bound, and the reference is not trained any more.
    - `"mean-mean"`: mean|∇L_ref| / mean|∇L_i|, the form of physicsnemo-sym.

    Args:
        previous (Tensor): Weights λ of the previous update, shape (…, T); ones at the start.
        ref_max (Tensor or None): Largest absolute entry of ∇L_ref, shape (…). Not used by `"mean-mean"`.
        means (Tensor): Mean absolute entry of each unweighted gradient ∇L_i, shape (…, T). NaN for an absent task.
        reference (int): Index of the reference loss, which keeps weight 1.
        alpha (float, optional): Rate α of the update. Default: 0.1.
        form (str, optional): Form of λ̂. Default: `"max-weighted-mean"`.

    Returns:
        Tensor: The new weights, shape (…, T). Tasks that are absent or have a zero gradient keep theirs. If the
        reference is absent, all keep theirs. A λ̂_i above 1e6 λ_i is limited, such that λ_i grows by a factor of 11 at
        most.

    Example:
        >>> lra_weights(torch.ones(2), torch.tensor(5.0), torch.tensor([1.0, 0.1]), reference=0)
        tensor([1.0000, 5.9000])

    References:
        Wang et al., Understanding and Mitigating Gradient Flow Pathologies in Physics-Informed Neural Networks.
        https://arxiv.org/abs/2001.04536
    """
    if form not in ("max-weighted-mean", "max-mean", "mean-mean"):
        raise ValueError(f"form is {form!r}, expected 'max-weighted-mean', 'max-mean' or 'mean-mean'")
    if form != "mean-mean" and ref_max is None:
        raise ValueError(f"ref_max is None, but the form {form!r} needs the largest entry of the reference gradient")
    dtype = working_dtype(means.device)
    kept, mean = previous.detach().to(dtype), means.detach().to(dtype)
    if form == "mean-mean" or ref_max is None:
        numerator = mean[..., reference].unsqueeze(-1)
    else:
        numerator = ref_max.detach().to(dtype).unsqueeze(-1)
    target = numerator / (kept * mean if form == "max-weighted-mean" else mean)
    limited = limit_outliers(target, kept, alpha)
    weights = torch.where(torch.isfinite(target), (1 - alpha) * kept + alpha * limited, kept)
    is_reference = torch.arange(mean.shape[-1], device=mean.device) == reference % mean.shape[-1]
    return clamp_to_dtype(torch.where(is_reference, 1.0, weights), output_dtype(previous))


def ntk_weights(traces: Tensor) -> Tensor:
    """Compute the NTK weights λ_i = Σ_j tr K_jj / tr K_ii, with K_ii the neural tangent kernel of loss i.

    tr K_ii is the sum of ‖∇r_k‖² over the residuals r_k of loss i. It grows with the number of points: pass the traces
    divided by the number of points, as jaxpi does, to compare losses with different numbers of points.

    Args:
        traces (Tensor): Traces tr K_ii, shape (…, T), for instance from :func:`ntk_trace`. NaN for an absent task.

    Returns:
        Tensor: The weights, shape (…, T); 0 for absent tasks. A weight is at most 1e12. If all traces are 0, the
        weights are those of equal traces.

    Example:
        >>> ntk_weights(torch.tensor([1.0, 3.0]))
        tensor([4.0000, 1.3333])

    References:
        Wang et al., When and Why PINNs Fail to Train: A Neural Tangent Kernel Perspective.
        https://arxiv.org/abs/2007.14527
    """
    present = torch.isfinite(traces)
    x = torch.where(present, traces.detach(), 0.0).to(working_dtype(traces.device))
    total = x.sum(-1, keepdim=True)
    weights = torch.where(total > 0, total / x.maximum(TRACE_FLOOR * total), present.sum(-1, keepdim=True))
    return (weights * present).to(output_dtype(traces))


def ntk_trace(residuals: Tensor, parameters: Iterable[Tensor], signs: Tensor, *, batch_dims: int = 0) -> Tensor:
    """Estimate the trace of the neural tangent kernel of residuals r_k from random signs ε_k.

    The trace Σ_k ‖∇r_k‖² is the expectation of ‖∇ Σ_k ε_k r_k‖² over independent random signs (Hutchinson's estimator),
    which takes one backward pass instead of one per residual. It is exact if the gradients of different residuals are
    orthogonal.

    A stack of networks takes no more passes than one: with parameters of shape (R, …) and residuals of shape (R, …),
    where those of a replica depend on its own parameters alone, `batch_dims=1` returns one trace per replica.

    Args:
        residuals (Tensor): Residuals with an autograd graph, any shape. The graph is kept.
        parameters (iterable of Tensor): Parameters of the network.
        signs (Tensor): Random signs ±1, of the shape of the residuals, or with one more leading dimension for several
            draws, whose estimates are averaged.
        batch_dims (int, optional): Number of leading dimensions of the residuals and of every parameter that count
            replicas. Default: 0.

    Returns:
        Tensor: The estimate, shape (), or the shape of the replicas.

    Example:
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> ntk_trace(3 * w, [w], torch.tensor([1.0, -1.0]))
        tensor(18.)

    References:
        Wang et al., When and Why PINNs Fail to Train: A Neural Tangent Kernel Perspective.
        https://arxiv.org/abs/2007.14527
    """
    return ntk_trace_and_reach(residuals, parameters, signs, batch_dims=batch_dims)[0]


def ntk_trace_and_reach(
    residuals: Tensor, parameters: Iterable[Tensor], signs: Tensor, *, batch_dims: int = 0
) -> tuple[Tensor, bool]:
    """Return what `ntk_trace` returns, and whether the residuals depend on any of the parameters."""
    extra = signs.dim() - residuals.dim()
    if extra not in (0, 1) or signs.shape[extra:] != residuals.shape:
        raise ValueError(
            f"signs have shape {tuple(signs.shape)}, expected the shape {tuple(residuals.shape)} of the residuals, "
            "with at most one more leading dimension"
        )
    leaves, dtype, replicas = list(parameters), working_dtype(residuals.device), residuals.shape[:batch_dims]
    for leaf in leaves:
        if leaf.shape[:batch_dims] != replicas:
            raise ValueError(
                f"a parameter has shape {tuple(leaf.shape)}, expected the leading dimensions {tuple(replicas)} of the "
                f"residuals: one set of parameters per replica"
            )
    reached = False
    draws = signs.to(residuals.dtype).reshape(-1, *residuals.shape)
    total = torch.zeros(replicas, dtype=dtype, device=residuals.device)
    for draw in draws:
        gradients = torch.autograd.grad(residuals, leaves, draw, retain_graph=True, allow_unused=True)
        for gradient in gradients:
            if gradient is not None:
                reached = True
                squares = gradient.detach().to(dtype).square()
                total = total + (squares.reshape(*replicas, -1).sum(-1) if replicas else squares.sum())
    return (total / len(draws)).to(output_dtype(residuals)), reached
