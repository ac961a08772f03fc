"""Train a variational autoencoder with two reconstruction losses: balance these, and give the KL term a fixed factor.

    python examples/vae.py

The KL term is zero if the encoder ignores its input. BPGS on all three losses gives it all the weight. `fixed=` adds
the term with a factor of your choice and leaves it out of the balance.
"""

import warnings

import torch
from torch import Tensor, nn

import counterpoise as cp


class VAE(nn.Module):
    """An encoder to four codes, and decoders to an image and to a number."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
        self.image = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32))
        self.number = nn.Linear(4, 1)

    def forward(self, images: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        mean, log_variance = self.encoder(images).chunk(2, 1)
        code = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        return {
            "image": (self.image(code) - images).square().mean(),
            "number": (self.number(code) - numbers).square().mean(),
            "kl": kl,
        }


def train(balancer: cp.Balancer, steps: int, seed: int = 0) -> tuple[float, float]:
    """Return the error of the images relative to their variance, and the KL term, after training."""
    torch.manual_seed(seed)
    factors = torch.randn(512, 3)
    images = torch.tanh(factors @ torch.randn(3, 32)) + 0.1 * torch.randn(512, 32)
    numbers = 50 * factors[:, :1]
    model = VAE()
    optimizer = torch.optim.Adam([{"params": model.parameters()}, *balancer.param_groups()], lr=5e-3)
    for _ in range(steps):
        batch = torch.randint(512, (128,))
        optimizer.zero_grad()
        balancer.backward(model(images[batch], numbers[batch]))
        optimizer.step()
    with torch.no_grad():
        final = model(images, numbers)
    return (final["image"] / images.var(0).mean()).item(), final["kl"].item()


def main(steps: int = 500) -> None:
    balancers = {
        "image and number balanced, kl fixed": cp.BPGS(["image", "number"], fixed={"kl": 0.01}),
        "all three balanced (collapses)": cp.BPGS(["image", "number", "kl"]),
    }
    for name, balancer in balancers.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cp.BalanceWarning)
            error, kl = train(balancer, steps)
        print(f"{name}: error {error:.2f} of the variance, KL {kl:.3f}")


if __name__ == "__main__":
    main()
