"""Helmholtz equation: a physics-informed network with a residual that is 10⁴ times as large as the boundary loss."""

from dataclasses import replace

from .pinn import condition, make_study, published, quick_form

PAPER = published(
    {
        "Sum": "0.0609±0.0231",
        "LRA": "0.0066±0.0025",
        "NTK": "0.0358±0.0107",
        "PCGrad": "0.0109±0.0031",
        "MGDA": "0.7590±0.1180",
        "CAGrad": "0.0735±0.0390",
        "Aligned-MTL": "0.6570±0.0805",
        "DCGD": "0.0029±0.0005",
        "DCGD + LRA": "0.0023±0.0007",
        "DCGD + NTK": "0.0057±0.0035",
    }
)

STUDY = replace(
    make_study(
        "pinn-helmholtz",
        "Helmholtz equation",
        "Which methods balance a residual and boundary terms whose gradients differ by orders of magnitude?",
        "helmholtz",
        (condition("two"), condition("five", key="five losses")),
        PAPER,
    ),
    quick=quick_form(),
)
