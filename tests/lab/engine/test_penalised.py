"""Penalised objectives agree with torch.distributions, and their trivial solutions have the stated error."""

import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engine_runs import result_files, train_to_end
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional as F

from counterpoise import BalanceWarning
from counterpoise.lab.data.digits import load_digits, split_digits
from counterpoise.lab.engine import Recipe, Run, Trainer, execute, make_run_batches, recipe, spec
from counterpoise.lab.engine.penalised import (
    LABELLED,
    OBJECTIVES,
    PenalisedWorkload,
    cross_entropies,
    standardised_centres,
)
from counterpoise.lab.models import StackedMLP
from counterpoise.lab.studies.penalised_tasks import METHODS as TASK_METHODS
from counterpoise.lab.studies.penalties import METHODS, SCHEDULE

SHORT = replace(SCHEDULE, epochs=2, batch_size=256)


def run(problem: str, method: Recipe, seed: int = 0, epochs: int = 2) -> Run:
    return Run("test", spec(problem), spec("mlp", hidden=16), method, seed, replace(SHORT, epochs=epochs))


def workload(problem: str) -> PenalisedWorkload:
    return PenalisedWorkload([run(problem, recipe("static"), seed) for seed in (0, 1)])


def perceptron(network: StackedMLP, replica: int, x: Tensor) -> Tensor:
    """Return all outputs of one network of a stack."""
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        x = F.linear(x if layer == 0 else F.gelu(x), weight[replica].T, bias[replica, 0])
    return x


def coded(found: PenalisedWorkload, replica: int, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return all outputs of the decoder of one network, and the KL divergence of its codes."""
    mean, log_variance = perceptron(found.objective.shared, replica, images).chunk(2, 1)
    posterior = Normal(mean, log_variance.exp().sqrt())
    output = perceptron(found.objective.decoder, replica, mean + posterior.stddev * noise)  # type: ignore[arg-type]
    return output, kl_divergence(posterior, Normal(0.0, 1.0)).sum(1).mean()


def test_the_autoencoder_has_the_negative_evidence_lower_bound() -> None:
    found = workload("autoencoder")
    images, _, noise = batch = next(found.batches())
    for r, losses in enumerate(found.losses(batch)):
        output, divergence = coded(found, r, images[r], noise[r])
        pixels = Normal(output, math.sqrt(0.05))
        constant = 64 * math.log(math.sqrt(2 * math.pi * 0.05))
        error = -pixels.log_prob(images[r]).sum(1).mean() - constant
        torch.testing.assert_close(losses, torch.stack([error, divergence]))


def test_the_bottleneck_has_cross_entropy_and_a_hundredth_of_the_divergence() -> None:
    found = workload("bottleneck")
    images, classes, noise = batch = next(found.batches())
    for r, losses in enumerate(found.losses(batch)):
        logits, divergence = coded(found, r, images[r], noise[r])
        torch.testing.assert_close(losses, torch.stack([F.cross_entropy(logits, classes[r]), divergence / 100]))


def test_the_policy_has_the_regret_and_the_missing_entropy() -> None:
    found = workload("entropy-bonus")
    images, classes, _ = batch = next(found.batches())
    for r, losses in enumerate(found.losses(batch)):
        policy = Categorical(logits=perceptron(found.objective.shared, r, images[r]))
        regret = 1 - policy.log_prob(classes[r]).exp().mean()
        torch.testing.assert_close(losses, torch.stack([regret, 0.1 * (math.log(10) - policy.entropy()).mean()]))


def test_consistency_has_labels_for_a_hundred_images_only() -> None:
    found = workload("consistency")
    images, classes, noise = batch = next(found.batches())
    assert (classes >= 0).sum(1).tolist() == [LABELLED, LABELLED]
    for r, losses in enumerate(found.losses(batch)):
        train, _ = split_digits(r)
        assert torch.equal(classes[r, :LABELLED], train.classes[:LABELLED])
        assert torch.equal(images[r, :LABELLED], train.images[:LABELLED])
        views = [perceptron(found.objective.shared, r, images[r] + 0.3 * part) for part in noise[r].chunk(2, 1)]
        error = F.cross_entropy(views[0][:LABELLED], train.classes[:LABELLED])
        penalty = (views[0].softmax(1) - views[1].softmax(1)).square().sum(1).mean()
        torch.testing.assert_close(losses, torch.stack([error, penalty]))


def test_a_shared_code_has_an_image_and_a_class() -> None:
    found = workload("shared-code")
    images, classes, noise = batch = next(found.batches())
    for r, losses in enumerate(found.losses(batch)):
        outputs, divergence = coded(found, r, images[r], noise[r])
        image = (outputs[:, :64] - images[r]).square().sum(1).mean() / 4.69
        kind = F.cross_entropy(outputs[:, 64:], classes[r]) / math.log(10)
        torch.testing.assert_close(losses, torch.stack([image, kind, divergence / 100]))


def test_few_labels_has_two_tasks_for_a_hundred_images_and_a_penalty_for_all() -> None:
    found = workload("few-labels")
    images, classes, noise = batch = next(found.batches())
    for r, losses in enumerate(found.losses(batch)):
        views = [perceptron(found.objective.shared, r, images[r] + 0.3 * part) for part in noise[r].chunk(2, 1)]
        labelled = slice(LABELLED)
        centre = F.mse_loss(views[0][labelled, :2], standardised_centres(images[r, labelled]))
        kind = F.cross_entropy(views[0][labelled, 2:], classes[r, labelled]) / math.log(10)
        first, second = (torch.cat([view[:, :2] / math.sqrt(2), view[:, 2:].softmax(1)], 1) for view in views)
        penalty = (first - second).square().sum(1).mean()
        torch.testing.assert_close(losses, torch.stack([centre, kind, penalty]))


def test_centres_of_mass_are_standardised() -> None:
    image = torch.zeros(8, 8)
    image[2, 5] = image[4, 5] = 0.5
    expected = (torch.tensor([5.0, 3.0]) - torch.tensor([3.57, 3.48])) / torch.tensor([0.0877, 0.1547]).sqrt()
    torch.testing.assert_close(standardised_centres(image.flatten()), expected)
    of_all = standardised_centres(load_digits().images)
    torch.testing.assert_close(of_all.mean(0), torch.zeros(2), atol=0.01, rtol=0)
    torch.testing.assert_close(of_all.var(0), torch.ones(2), atol=0.01, rtol=0)


def test_a_unit_multiplies_the_first_training_loss_and_no_metric() -> None:
    plain = run("shared-code", recipe("static"))
    scaled = replace(plain, data=spec("shared-code", unit=1000.0))
    found = PenalisedWorkload([plain, replace(scaled, seed=plain.seed)])
    batch = [part[:1].repeat(2, *[1] * (part.dim() - 1)) for part in next(found.batches())]
    losses, measured = found.losses(tuple(batch)), found.evaluate()
    torch.testing.assert_close(losses[1], losses[0] * torch.tensor([1000.0, 1.0, 1.0]))
    torch.testing.assert_close(measured["objective"][0], measured["objective"][1])


def test_images_without_a_class_have_no_cross_entropy() -> None:
    logits = torch.randn(2, 3, 4)
    classes = torch.tensor([[1, -1, 2], [-1, -1, -1]])
    expected = F.cross_entropy(logits[0, [0, 2]], torch.tensor([1, 2]))
    torch.testing.assert_close(cross_entropies(logits, classes), torch.stack([expected, torch.tensor(0.0)]))


@pytest.mark.parametrize("problem", OBJECTIVES)
def test_an_epoch_has_every_image_once_and_splits_do_not_overlap(problem: str) -> None:
    found = workload(problem)
    batches = list(found.batches())
    assert len(batches) == found.steps
    skipped = LABELLED if problem in ("consistency", "few-labels") else 0
    seen = torch.cat([images[:, skipped:] for images, *_ in batches], 1)
    held_out = found.held_out[0]
    for r in range(2):
        assert sorted(map(tuple, seen[r].tolist())) == sorted(map(tuple, found.train[0][r].tolist()))
    assert seen.shape[1] + held_out.shape[1] == 1797


@pytest.mark.parametrize("problem", OBJECTIVES)
@torch.no_grad()
def test_the_best_constant_prediction_has_an_error_share_of_one_and_no_penalty(problem: str) -> None:
    found = workload(problem)
    for parameter in found.network.parameters():
        parameter.zero_()  # codes are those of the prior
    output = getattr(found.objective, "decoder", found.objective.shared)
    for r in range(2):
        train, _ = split_digits(r)
        frequencies = torch.bincount(train.classes, minlength=10) / len(train)
        constants = {
            "autoencoder": train.images.mean(0),
            "entropy-bonus": 100 * (frequencies == frequencies.max()),
            "shared-code": torch.cat([train.images.mean(0), frequencies.log()]),
            "few-labels": torch.cat([standardised_centres(train.images).mean(0), frequencies.log()]),
        }
        output.biases[-1][r] = constants.get(problem, frequencies.log())
    measured = found.evaluate()
    torch.testing.assert_close(measured["error_share"], torch.ones(2))
    # A policy without entropy has the largest penalty.
    expected = 0.1 * math.log(10) if problem == "entropy-bonus" else 0.0
    torch.testing.assert_close(measured["loss"][:, -1], torch.full((2,), expected))
    torch.testing.assert_close(measured["objective"], measured["loss"].sum(1))


def test_runs_trained_together_agree_with_runs_trained_alone() -> None:
    for problem in OBJECTIVES:
        runs = [run(problem, METHODS[name], seed) for name in ("Sum", "BPGS", "FAMO") for seed in (0, 1)]
        together = train_to_end(*runs).results()
        for r in (1, 4):
            alone = train_to_end(runs[r]).results()[0]
            assert together[r]["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)


def test_a_fixed_penalty_keeps_its_factor_among_methods_that_balance_all_losses() -> None:
    methods = {name: TASK_METHODS[name] for name in ("BPGS", "FAMO, penalty fixed ×0.01", "Sum")}
    runs = [run("few-labels", method) for method in methods.values()]
    together = train_to_end(*runs).results()
    alone = train_to_end(runs[1]).results()[0]
    assert together[1]["weights"]["penalty"] == pytest.approx(0.01)
    assert together[1]["weights"] == pytest.approx(alone["weights"], rel=1e-4)
    assert together[1]["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)
    hybrid = train_to_end(run("few-labels", TASK_METHODS["BPGS + CAGrad, penalty fixed"])).results()[0]
    assert hybrid["weights"]["penalty"] == 1.0


def test_killed_batches_resume_with_identical_results(tmp_path: Path) -> None:
    runs = [run(problem, METHODS[name], 0) for problem in ("autoencoder", "consistency") for name in ("BPGS", "PCGrad")]

    class KilledError(Exception):
        pass

    def kill(trainer: Trainer) -> None:
        if trainer.epoch == 1:
            raise KilledError

    for batch in make_run_batches(runs):
        execute(batch, tmp_path / "uninterrupted")
        with pytest.raises(KilledError):
            execute(batch, tmp_path / "killed", checkpoint_seconds=0.0, after_epoch=kill)
        execute(batch, tmp_path / "killed")
    assert result_files(tmp_path / "uninterrupted") == result_files(tmp_path / "killed")


@pytest.mark.parametrize("problem", OBJECTIVES)
def test_bpgs_ignores_the_input_and_warns_and_the_plain_sum_does_not(problem: str) -> None:
    schedule = replace(SHORT, epochs=15, batch_size=64)
    plain, bpgs = (replace(run(problem, METHODS[name]), schedule=schedule) for name in ("Sum", "BPGS"))
    with pytest.warns(BalanceWarning, match="BPGS has given task 'penalty' more than 99.9%"):
        assert train_to_end(bpgs).results()[0]["metrics"]["error_share"] > 0.9
    with warnings.catch_warnings():
        warnings.simplefilter("error", BalanceWarning)
        assert train_to_end(plain).results()[0]["metrics"]["error_share"] < 0.8
