"""Numeric options: every method refuses values that are not finite, of the wrong type, or out of range."""

import inspect
import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import counterpoise as cp

BATCH_SIZES = ("tasks", "batch_shape")


def method_class(name: str) -> type[cp.Balancer]:
    return cp.describe(name).build


def numeric_options(name: str) -> list[tuple[str, str]]:
    """Return the options of a method whose annotation contains int or float, with their annotation."""
    parameters = inspect.signature(method_class(name)).parameters.values()
    annotated = [(p.name, p.annotation if isinstance(p.annotation, str) else str(p.annotation)) for p in parameters]
    annotated = [(option, kind.removeprefix("<class '").removesuffix("'>")) for option, kind in annotated]
    kinds = ("int", "float", "int | None", "float | None", "int | collections.abc.Sequence[int]")
    return [(option, kind) for option, kind in annotated if option not in BATCH_SIZES and kind in kinds]


def per_task_options(name: str) -> list[str]:
    parameters = inspect.signature(method_class(name)).parameters.values()
    return [p.name for p in parameters if "Tensor" in str(p.annotation) and "Mapping" in str(p.annotation)]


CASES = [(name, option, kind) for name in cp.methods() for option, kind in numeric_options(name)]
TASK_CASES = [(name, option) for name in cp.methods() for option in per_task_options(name)]


def test_options_are_found() -> None:
    found = {option for _, option, _ in CASES}
    assert {"lr", "beta", "alpha", "every", "max_ratio", "seed", "accumulation"} <= found
    assert ("graddrop", "leak") in TASK_CASES


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1"])
@pytest.mark.parametrize(("name", "option", "kind"), CASES)
def test_numbers_that_are_not_finite_are_refused(name: str, option: str, kind: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=option) as error:
        cp.make(name, 5, **{option: value})
    if option != "seed":
        assert str(error.value).startswith(method_class(name).__name__)


@pytest.mark.parametrize(("name", "option"), [(name, option) for name, option, kind in CASES if "int" in kind])
def test_integers_are_required(name: str, option: str) -> None:
    with pytest.raises((ValueError, TypeError), match=option):
        cp.make(name, 5, **{option: 1.5})


def flags(name: str) -> list[str]:
    parameters = inspect.signature(method_class(name)).parameters.values()
    return [p.name for p in parameters if isinstance(p.default, bool)]


@pytest.mark.parametrize("value", ["no", None, 2, 0.0])
@pytest.mark.parametrize(("name", "option"), [(name, option) for name in cp.methods() for option in flags(name)])
def test_flags_are_true_or_false(name: str, option: str, value: Any) -> None:
    weighting = cp.describe(name).space == "gradient" and option == "memory"
    with pytest.raises(TypeError, match=f"{option} is .*, expected True or False"):
        cp.make(name, 5, **{option: value}, **({"weighting": cp.Static(5)} if weighting else {}))


def test_an_unknown_option_suggests_one_that_contains_it() -> None:
    with pytest.raises(TypeError, match="BPGS has no option 'gain': did you mean 'theta_gain'"):
        cp.make("bpgs", 2, gain=3)
    with pytest.raises(ValueError, match="theta_gain"):
        cp.BPGS(2, theta_gain=-1)


@pytest.mark.parametrize(("name", "option"), TASK_CASES)
def test_numbers_per_task_must_be_finite(name: str, option: str) -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=option):
            cp.make(name, 2, **{option: [0.5, value]})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("famo", {"lr": -0.1}),
        ("famo", {"weight_decay": -0.1}),
        ("gradnorm", {"lr": -0.1}),
        ("moco", {"beta": -0.1}),
        ("moco", {"gamma": -0.1}),
        ("excess-mtl", {"lr": -1.0}),
        ("auto-lambda", {"virtual_lr": -1.0}),
        ("db-mtl", {"sigma": -1.0}),
        ("cagrad", {"alpha": -0.1}),
        ("dwa", {"max_epoch_steps": 0}),
        ("sdmgrad", {"iterations": 0}),
    ],
)
def test_values_out_of_range_are_refused(name: str, options: dict[str, Any]) -> None:
    kind, (option,) = method_class(name).__name__, options
    with pytest.raises(ValueError, match=f"^{kind}: {option} is .*, expected "):
        cp.make(name, 2, **options)


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan])
def test_fairgrad_needs_a_positive_alpha(alpha: float) -> None:
    for solver in (cp.functional.fairgrad, cp.functional.fairgrad_weights):
        with pytest.raises(ValueError, match="fairgrad: alpha is"):
            solver(torch.eye(2), alpha=alpha)


@pytest.mark.parametrize("alpha", [1.0, 1.7, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_cagrad_is_optimal_for_a_radius_of_one_and_more(alpha: float, seed: int) -> None:
    """Compare with the dual problem min_w ⟨g_w, g₀⟩ + α‖g₀‖‖g_w‖ over the simplex."""
    generator = torch.Generator().manual_seed(seed)
    tasks = 2 + seed
    grads = torch.randn(tasks, 7, generator=generator, dtype=torch.float64) + 0.3
    gram, mean = grads @ grads.mT, grads.mean(0)
    solution = cp.functional.cagrad(gram, alpha=alpha, rescale=False)
    direction = solution.weights @ grads
    radius = alpha * float(mean.norm())
    assert bool(solution.solved)
    assert float((direction - mean).norm()) <= radius * (1 + 1e-9)

    def dual(logits: Any) -> float:
        combined = torch.softmax(torch.from_numpy(logits), -1) @ grads
        return float(combined @ mean + radius * combined.norm())

    best = min(
        minimize(dual, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-10, "fatol": 1e-13}).fun
        for start in (torch.zeros(tasks).double().numpy(), solution.weights.clamp_min(1e-9).log().numpy())
    )
    torch.testing.assert_close(float((grads @ direction).min()), best, rtol=1e-5, atol=1e-7)


def test_cagrad_with_a_large_radius_does_not_ascend_for_opposite_gradients() -> None:
    gram = torch.tensor([[1.0, -2.0], [-2.0, 4.0]], dtype=torch.float64)  # g and −2g: Pareto stationary
    weights = cp.functional.cagrad_weights(gram, alpha=1.5)
    torch.testing.assert_close(gram @ weights, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_solvers_return_no_autograd_graph() -> None:
    gram = torch.eye(3).add(0.1).requires_grad_()
    w, phi = torch.full((3,), 1 / 3).requires_grad_(), torch.zeros(3, 3).requires_grad_()
    functional = cp.functional
    results: list[Tensor] = [
        *functional.sdmgrad_weights(gram, w),
        *functional.gradvac_weights(gram, phi),
        functional.pcgrad_weights(gram),
        functional.cagrad_weights(gram),
        functional.mgda_weights(gram),
        functional.upgrad_weights(gram),
        functional.nash_weights(gram),
        functional.fairgrad_weights(gram),
        functional.imtl_g_weights(gram),
        functional.aligned_mtl_weights(gram),
        functional.gradnorm_proxy_weights(gram),
    ]
    assert not any(result.requires_grad for result in results)
