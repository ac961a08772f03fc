"""Random molecules with the layout of QM9, for tests and for trials without the data."""

import torch

from .qm9 import ATOMS, ELEMENTS, HYDROGENS, SP3, TARGETS, Molecules


def synthetic_molecules(count: int, seed: int = 0) -> Molecules:
    """Draw chains of 3 to 29 atoms. Chemically they are meaningless, but their targets depend on atoms and distances.

    The scales of the targets differ by a factor of 10⁵, as those of QM9 do.

    Args:
        count: Number of molecules.
        seed: Seed of the draw. Default: 0.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, ATOMS + 1, (count, 1), generator=generator)
    present = torch.arange(ATOMS) < sizes
    elements = torch.tensor(ELEMENTS, dtype=torch.uint8)
    numbers = elements[torch.randint(len(ELEMENTS), (count, ATOMS), generator=generator)] * present
    types = torch.randint(1, 5, (count, ATOMS - 1), generator=generator, dtype=torch.uint8) * present[:, 1:]
    chain = torch.diag_embed(types, offset=1)
    bonds = chain + chain.mT
    hydrogens = ((bonds != 0) & (numbers == 1)[:, None, :]).sum(-1)
    attributes = ((hydrogens << HYDROGENS) + SP3 * (numbers > 1)).to(torch.uint8)
    steps = torch.nn.functional.normalize(torch.randn(count, ATOMS, 3, generator=generator), dim=-1)
    positions = (1.3 * steps).cumsum(1) * present[..., None]
    molecules = Molecules(numbers, attributes, bonds, positions, torch.empty(count, len(TARGETS)))
    features, mean_distance = molecules.features(torch.float64), molecules.distances().double().mean((1, 2))
    known = torch.cat([features.sum(1), mean_distance[:, None]], 1)
    mixing = torch.randn(known.shape[1], len(TARGETS), generator=generator, dtype=torch.float64)
    targets = known @ mixing * torch.logspace(-1, 4, len(TARGETS), dtype=torch.float64)
    return Molecules(numbers, attributes, bonds, positions, targets)
