"""Burgers equation: a physics-informed network with a shock."""

from .pinn import BEST_PUBLISHED, MAIN, candidate_claims, condition, make_study, published

PAPER = published(
    {
        "Sum": "0.0683±0.0285",
        "LRA": "0.0180±0.0094",
        "NTK": "0.0224±0.0061",
        "PCGrad": "0.0159±0.0061",
        "MGDA": "0.9780±0.0462",
        "CAGrad": "0.0321±0.0063",
        "Aligned-MTL": "0.0294±0.0129",
        "DCGD": "0.0124±0.0046",
        "DCGD + LRA": "0.0104±0.0021",
        "DCGD + NTK": "0.0113±0.0040",
    }
)

# In the authors' public code, DCGD keeps its learning rate constant on this equation, and on no other, and there are 42
# points on each side.
STUDY = make_study(
    "pinn-burgers",
    "Burgers equation",
    "Which methods balance the residual, the initial condition and the boundary of an equation with a shock?",
    "burgers",
    (
        condition("three"),
        condition("two", key="two losses"),
        condition("three", key="constant rate", decay="constant"),
        condition("three", key="authors' code", boundary=42, decay="constant"),
    ),
    PAPER,
    candidate_claims(
        PAPER["rel_l2"][BEST_PUBLISHED][MAIN][0],
        "beyond the paper, Burgers equation with a constant learning rate",
        "constant rate",
        ", with a constant learning rate",
    ),
)
