"""Balance the losses of a detector whose library owns the training loop, its gradient clipping and its EMA.

    python examples/detector.py

The balancer is not a submodule. The library then clips, averages and decays the detector alone.
"""

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import counterpoise as cp

Batch = tuple[Tensor, Tensor, Tensor]  # images (B, 16), classes (B,), and boxes (B, 4), which are NaN without an object


class Trainer:
    """A stand-in for the library: it sums the losses that the model returns, clips gradients and keeps an EMA."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))

    def fit(self, batches: list[Batch]) -> None:
        for images, classes, boxes in batches:
            self.optimizer.zero_grad()
            torch.stack(list(self.model(images, classes, boxes).values())).sum().backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.optimizer.step()
            self.ema.update_parameters(self.model)


class Detector(nn.Module):
    """A detector that returns its losses. The box loss is 0 if no image of the batch has an object."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.classes, self.boxes = nn.Linear(32, 3), nn.Linear(32, 4)

    def forward(self, images: Tensor, classes: Tensor, boxes: Tensor) -> dict[str, Tensor]:
        z = self.backbone(images)
        objects = boxes.isfinite().all(1)
        box = (self.boxes(z)[objects] - boxes[objects]).abs().sum() / objects.sum().clamp(min=1)
        return {"class": nn.functional.cross_entropy(self.classes(z), classes), "box": box}


class BalancedLosses(nn.Module):
    """Replace the losses of a detector by one balanced loss."""

    def __init__(self, detector: Detector, balancer: cp.Balancer) -> None:
        super().__init__()
        self.detector = detector
        self.outside = [balancer]  # in a list, so that the balancer is not a submodule

    def forward(self, images: Tensor, classes: Tensor, boxes: Tensor) -> dict[str, Tensor | None]:
        losses = self.detector(images, classes, boxes)
        if not boxes.isfinite().any():
            losses["box"] = None  # no object: the task is absent, and a loss of 0 would take all the weight
        return {"balanced": self.outside[0].loss(losses, shared=self.detector.backbone.parameters())}


def main(steps: int = 200) -> None:
    torch.manual_seed(0)
    batches: list[Batch] = []
    for step in range(steps):
        images = torch.randn(16, 16)
        boxes = images[:, :4] * (100 if step % 5 else torch.nan)
        batches.append((images, images[:, :3].argmax(1), boxes))
    balancer = cp.BPGS(["class", "box"], memory=True)
    trainer = Trainer(BalancedLosses(Detector(), balancer))
    trainer.optimizer.add_param_group(balancer.param_groups()[0])  # θ is trained without weight decay and never clipped
    trainer.fit(batches)
    print(f"losses {balancer.losses}, weights {balancer.weights}")


if __name__ == "__main__":
    main()
