"""DeepXDE: a Model whose losses are balanced, on its PyTorch backend."""

from collections.abc import Iterable
from typing import Any

import torch
from deepxde import Model, config
from deepxde.backend import backend_name
from deepxde.callbacks import Callback
from torch import Tensor, nn

from ..balancer import Balancer
from ..inputs import format_names
from ..weighting import Static, Weighting
from ._messages import check_needs, check_optimisers, explain_shared
from .readings import readings

SUPPORTED_NEEDS = {"shared", "epoch_end"}


class BalancedModel(Model):  # type: ignore[misc, unused-ignore]
    """A `deepxde.Model` whose losses are combined by a balancer instead of `loss_weights`.

    The tasks of the balancer must be in the order of DeepXDE's losses: the residuals that the equation returns, then
    one loss per boundary or initial condition, then the penalty of an "l1" regulariser (`fixed={"l1": 1.0}`).

    `compile` adds the balancer's parameters to the optimiser. After `compile("L-BFGS")`, the weights are fixed to those
    of the last step, because a line search needs one objective. `save` and `restore` include the balancer. The losses
    that DeepXDE displays and keeps in its history are not weighted.

    Args:
        data (deepxde.data.Data): The data, as for `deepxde.Model`.
        net (deepxde.nn.NN): The network.
        balancer (Balancer): Any balancer that needs nothing but losses and task gradients.
        shared (iterable of nn.Parameter, optional): The parameters on which task gradients are compared. Default:
            `None`, all parameters of the network.

    Raises:
        RuntimeError: If DeepXDE does not use its PyTorch backend.
        ValueError: If the balancer needs more than losses and task gradients.

    Example:
        >>> import deepxde as dde
        >>> import counterpoise as cp
        >>> def equation(x, u):
        ...     return dde.grad.hessian(u, x) + torch.sin(x)
        >>> line = dde.geometry.Interval(0, 3.14159)
        >>> ends = dde.icbc.DirichletBC(line, lambda x: 0, lambda x, on_boundary: on_boundary)
        >>> data = dde.data.PDE(line, equation, ends, num_domain=8, num_boundary=2)
        >>> net = dde.nn.FNN([1, 8, 1], "tanh", "Glorot normal")
        >>> model = BalancedModel(data, net, cp.LRA(["residual", "boundary"], reference="residual"))
        >>> model.compile("adam", lr=1e-3, verbose=0)
        >>> _ = model.train(iterations=5, verbose=0)
        >>> model.balancer.weights.shape
        torch.Size([2])
    """

    def __init__(
        self, data: Any, net: Any, balancer: Balancer, *, shared: Iterable[nn.Parameter] | None = None
    ) -> None:
        if backend_name != "pytorch":
            raise RuntimeError(
                f"DeepXDE uses the backend {backend_name!r}, and counterpoise needs 'pytorch': set the environment "
                f"variable DDE_BACKEND=pytorch before deepxde is imported"
            )
        check_needs(balancer, SUPPORTED_NEEDS, "DeepXDE")
        super().__init__(data, net)
        self.balancer = balancer.to(next(net.parameters()).device)
        self.shared = list(net.parameters() if shared is None else shared)
        self._frozen: Weighting | None = None
        self._restored: Tensor | None = None  # the weights of a checkpoint

    def compile(
        self,
        optimizer: Any,
        lr: float | None = None,
        loss: Any = "MSE",
        metrics: Any = None,
        decay: Any = None,
        loss_weights: Any = None,
        external_trainable_variables: Any = None,
        verbose: int = 1,
    ) -> None:
        """Configure the training as `deepxde.Model.compile` does, with the balancer's parameters in the optimiser.

        Args:
            optimizer (str or torch.optim.Optimizer): As in DeepXDE, except `"NNCG"`. Add `balancer.param_groups()` to
                an optimiser of your own.
            lr (float, optional): As in DeepXDE. Default: `None`.
            loss (str, callable or list, optional): As in DeepXDE. Default: `"MSE"`.
            metrics (list, optional): As in DeepXDE. Default: `None`.
            decay (tuple, optional): As in DeepXDE. Default: `None`.
            loss_weights (list of float, optional): Must be `None`, because the balancer weights the losses.
            external_trainable_variables (deepxde.Variable or list, optional): As in DeepXDE. Default: `None`.
            verbose (int, optional): As in DeepXDE. Default: `1`.

        Raises:
            ValueError: If `loss_weights` is given, or if the optimiser is NNCG.
        """
        if loss_weights is not None:
            raise ValueError(
                f"loss_weights are {loss_weights}, but the balancer weights the losses: use cp.Static(tasks, weights=…)"
                f" for fixed weights, or importance= of the balancer for a preference"
            )
        if optimizer == "NNCG":
            raise ValueError("NNCG differentiates the objective twice, which a balancer does not support: use 'L-BFGS'")
        given = external_trainable_variables
        variables = [] if given is None else given if isinstance(given, list) else [given]
        self._fixes_weights = optimizer in ("L-BFGS", "L-BFGS-B") or isinstance(optimizer, torch.optim.LBFGS)
        self._frozen = None
        learned = [] if self._fixes_weights else [p for p in self.balancer.parameters() if p.requires_grad]
        # DeepXDE puts these variables in a group without weight decay.
        super().compile(optimizer, lr, loss, metrics, decay, None, [*variables, *learned], verbose=verbose)
        if learned:
            advice = "add the groups balancer.param_groups() to the optimiser that you pass to compile"
            check_optimisers(self.balancer, [self.opt], [*self.net.parameters(), *variables], advice)
        self.train_step = self._balanced_step

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as `deepxde.Model.train` does.

        Raises:
            RuntimeError: If the model is not compiled.
            ValueError: If the number of losses is not the number of tasks of the balancer.
        """
        if self.train_step is None:
            raise RuntimeError("the model is not compiled: call model.compile(…) before model.train(…)")
        return super().train(*args, **kwargs)

    def save(self, save_path: str, protocol: str = "backend", verbose: int = 0) -> str:
        """Save the network, the optimiser and the balancer to one file, as `deepxde.Model.save` does."""
        path: str = super().save(save_path, protocol, verbose)
        if protocol == "backend":
            weights = self._restored if self.balancer.weights is None else self.balancer.weights
            state = {"balancer_state_dict": self.balancer.state_dict(), "balancer_weights": weights}
            torch.save(torch.load(path, weights_only=True) | state, path)
        return path

    def restore(self, save_path: str, device: str | None = None, verbose: int = 0) -> None:
        """Restore the network, the optimiser and the balancer.

        Raises:
            KeyError: If the file was not written by a BalancedModel.
        """
        saved = torch.load(save_path, map_location=device, weights_only=True)
        if "balancer_state_dict" not in saved:
            raise KeyError(f"{save_path} has no state of a balancer: it was not written by a BalancedModel")
        super().restore(save_path, device, verbose)
        self.balancer.load_state_dict(saved["balancer_state_dict"])
        self._restored, self._frozen = saved["balancer_weights"], None

    def _balanced_step(self, inputs: Any, targets: Any, auxiliary_vars: Any) -> None:
        """Run one step of the optimiser."""
        balancer = self._with_fixed_weights() if self._fixes_weights else self.balancer

        def closure() -> Tensor:
            losses = self._losses(inputs, targets, auxiliary_vars)
            self.opt.zero_grad()
            with explain_shared(balancer, "shared= of BalancedModel", "pass shared= to BalancedModel"):
                return balancer.backward(losses, shared=self.shared)

        self.opt.step(closure)
        balancer.epoch_end()  # an epoch of DeepXDE is one iteration
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def _losses(self, inputs: Any, targets: Any, auxiliary_vars: Any) -> Tensor:
        """Return the losses of a batch, (T,)."""
        with torch.autocast(self.shared[0].device.type, dtype=torch.float16, enabled=config.mixed):
            losses: Tensor = self.outputs_losses_train(inputs, targets, auxiliary_vars)[1]
        names = self.balancer._order
        if len(losses) != len(names):
            raise ValueError(
                f"DeepXDE computed {len(losses)} losses, but the balancer has {len(names)} ({format_names(names)}): "
                f"name the residuals of the equation first, then the conditions in the order of the data, then 'l1' if "
                f"the network has this regulariser"
            )
        return losses

    def _with_fixed_weights(self) -> Weighting:
        """Return a balancer with the weights of the last step, or with those of a restored checkpoint."""
        balancer = self.balancer
        if self._frozen is None:
            if isinstance(balancer, Weighting) and not balancer.adaptive:
                self._frozen = balancer
            elif balancer.weights is None and self._restored is not None:
                fixed = Static(balancer._order, self._restored, fixed=balancer.fixed or None)
                self._frozen = fixed.to(self.shared[0].device)
            else:
                self._frozen = balancer.frozen()
        return self._frozen


class BalancerHistory(Callback):  # type: ignore[misc, unused-ignore]
    """A callback that records the losses, the weights and the learned values of the tasks (see `readings`).

    Args:
        period (int, optional): Number of steps between two records. Default: `100`.
        verbose (int, optional): Whether to print the weights of every record. Default: `0`.

    Attributes:
        rows (list of dict): One dict per record: "step", "loss/<task>", "weight/<task>", ….

    Example:
        >>> history = BalancerHistory(period=10)
        >>> history.rows
        []
    """

    def __init__(self, period: int = 100, verbose: int = 0) -> None:
        super().__init__()
        self.period = period
        self.verbose = verbose
        self.rows: list[dict[str, float]] = []

    def on_epoch_end(self) -> None:
        """Record every `period` steps. One epoch of L-BFGS may have many steps."""
        last = self.rows[-1]["step"] if self.rows else 0
        if self.model.train_state.step - last >= self.period:
            self._record()

    def on_train_end(self) -> None:
        """Record the last step."""
        if not self.rows or self.rows[-1]["step"] != self.model.train_state.step:
            self._record()

    def _record(self) -> None:
        scalars, step = readings(self.model.balancer), self.model.train_state.step
        if self.model._frozen is not None:  # the losses of L-BFGS
            scalars |= readings(self.model._frozen)
        self.rows.append({"step": step} | {name: value.item() for name, value in scalars.items()})
        if self.verbose > 0:
            weights = {name: value for name, value in self.rows[-1].items() if name.startswith("weight/")}
            print(step, ", ".join(f"{name} {value:.3g}" for name, value in weights.items()))
