"""Klein-Gordon equation: a physics-informed network with an initial velocity and a nonlinear term."""

from .pinn import condition, make_study, published

PAPER = published(
    {
        "Sum": "0.0792±0.0386",
        "LRA": "0.0069±0.0037",
        "NTK": "0.0223±0.0151",
        "PCGrad": "0.0286±0.0064",
        "MGDA": "0.6690±0.2790",
        "CAGrad": "0.1850±0.0301",
        "Aligned-MTL": "0.5571±0.1824",
        "DCGD": "0.0069±0.0027",
        "DCGD + LRA": "0.0050±0.0013",
        "DCGD + NTK": "0.0055±0.0014",
    }
)

STUDY = make_study(
    "pinn-klein-gordon",
    "Klein-Gordon equation",
    "Which methods balance the residual, the initial conditions and the boundary of a wave equation?",
    "klein-gordon",
    (
        condition("three"),
        condition("two", key="two losses"),
        condition("three", key="authors' points", interior=128),
    ),
    PAPER,
)
