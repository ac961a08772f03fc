"""Tolerances, iteration limits and fallback thresholds of the Gram solvers.

`docs/numerics.md` explains the algorithms that use them. "CPU" means that the solver may read values and stop early;
"device" means that it may not (a GPU, or a graph being compiled) and runs a fixed number of rounds.
"""

TINY = 1e-300  # lower bound of a divisor that may vanish

# Normalisation of the Gram matrix (`_gram`)
RIDGE_FLOOR = 1e-13  # smallest ridge, for float64 input
RIDGE_EPS = 8  # ridge in units of the input's machine epsilon: the rounding error of a normalised entry
ROUNDING_RIDGES = 100  # negative eigenvalues in ridges that are attributed to the rounding of sums of many products
ROUNDING_LIMIT = 1e-4  # upper bound of such an eigenvalue, for half precision
COMPARABLE_SQUARES = 1e12  # ratio of squared norms up to which no entry of the matrix needs a guard
PYTHON_COMPARISONS = 64  # numbers up to which a Python loop is faster than a tensor reduction
DEVICE_ROUNDS_DIVISOR = 3  # a device runs a third of the rounds, enough for all but the most degenerate matrices

# Linear systems (`_linear_systems`)
BATCHED_TASKS = 128  # tasks up to which a CPU solves a batch in one call: with several threads, MKL fails from 151

# Linear complementarity (`_complementarity`)
BLOCK_ROUNDS = 10  # block pivoting converges in fewer rounds or is likely to cycle
SIGN_ROUNDING = 1e-13  # negative part relative to max|x| that rounding explains
ENUMERATED_TASKS = 10  # tasks up to which all 2^T supports are tried
ENUMERATED_CUDA_TASKS = 12  # the same on CUDA, where one batch of systems is faster than a sequence of rounds
ENUMERATED_SYSTEMS = 1 << 16  # linear systems in one batch of that search, which bounds its memory
ENUMERATION_VIOLATION = 1e-9  # violation relative to max|x| + max|q| that is accepted for the best support

# Interior point (`_interior_point`)
INTERIOR_ROUNDS = 60  # on the CPU
INTERIOR_DEVICE_ROUNDS = 30
INTERIOR_EXACT = 1e-14  # relative error at which the iteration stops
INTERIOR_SOLVED = 1e-9  # relative error up to which the result counts as a solution
CENTRING_FIRST = 0.3  # share of the mean product x·y that the first step aims at
CENTRING_LEAST = 1e-3  # lower bound of that share after a long step
CENTRING_FLOOR = 1e-16  # lower bound of the product aimed at, which keeps x and y positive
BOUNDARY_FRACTION = 0.995  # share of the way to the boundary that a step may take

# CAGrad (`cagrad`)
CAGRAD_DEVICE_ROUNDS = 7  # block pivoting on a device, which cannot stop early
PIVOTING_VIOLATION = 1e-12  # violation of the optimality conditions that rounding explains
RADIUS_ERROR = 1e-10  # relative error of ‖d − g₀‖ above which μ has lost its digits
NEARLY_STATIONARY = 1e4  # inverse square of the shortest combination from which stationarity is checked
SUPPORT_VIOLATION = 1e-7  # violation up to which a support is accepted: rounding leaves as much where x is large
LENGTH_ROUNDING = 1e-15  # rounding error of a length per unit of the terms that cancel in it
LENGTH_ROUNDING_LIMIT = 0.01  # largest share of the radius that is attributed to rounding
BISECTIONS = 60  # halvings of the angle, to the last bit of float64
STATIONARY = 1e-4  # δ: shortest convex combination / smallest norm below which the nearest direction is taken
STATIONARY_RIDGES = 10  # δ² in ridges, where the precision of the input is lower
BALL_SLACK = 1e-9  # relative excess over the radius that counts as inside the ball

# IMTL-G (`imtl_g`)
DEPENDENT_RIDGES = 10  # eigenvalues of the cosines below this many ridges count as zero
DEPENDENT_RIDGE_LIMIT = 1e-4  # upper bound of the ridge used there: half precision would discard every eigenvalue
REGULAR_MARGIN = 0.1  # the trace of the inverse times the cut stays below this if no eigenvalue is near the cut
PURIFICATIONS = 4  # McWeeny steps that turn the filtered matrix into a projection
PURIFICATION_MARGIN = 5  # purification converges down to eigenvalues of −τ divided by this
WEIGHT_SUM = 1e-6  # Σα / Σ|α| below which weights are divided by Σ|α|: the sum is negative or all but zero
VANISHED_SHARE = 1e-4  # share of the vector 1 in the range of the cosines below which the direction is zero
EQUAL_SHARE = 1e-6  # distance of that share from 1 up to which projections are equal

# Nash-MTL and FairGrad (`nash`)
NEWTON_CONVERGED = 3e-6  # relative step after which the error, its square, is below 1e-11
WEIGHTED_CONVERGED = 3e-7  # the same with a preference: the error is below 1e-12
NEWTON_ROUNDS = 64  # Nash-MTL on the CPU
NEWTON_DEVICE_ROUNDS = 14
NEWTON_POWER_ROUNDS = 80  # FairGrad with α ≠ 1 on the CPU; its merit function is less well behaved
NEWTON_KERNEL_TASKS = 16  # tasks up to which one kernel on CUDA runs all iterations, up to the limit of the CPU
FULL_STEP = 0.25  # relative step length up to which Newton's method takes full steps
START_FLOOR = 0.25  # lower bound of the sums that the starting point is computed from
CURVATURE_FLOOR = 1e-14  # lower bound of xᵀCx for the starting point on a device
NASH_ERROR = 1e-8  # accepted |x_i (Cx)_i − 1|
CANCELLATION = 1e-14  # addition to it per unit of the terms that cancel
LARGEST_TERM = 1e12  # largest terms that may cancel to 1 in float64
LARGEST_TERM_RIDGES = 4  # the same in units of 1/ridge, for lower precision
ITERATE_RANGE = 1e100  # bound of x and 1/x, which keeps powers finite

# Single small matrices in Python arithmetic (`_scalar_fast_path`)
SMALL_TASKS = 8  # tasks up to which Python arithmetic is faster than tensor operations
SMALL_NEWTON_ROUNDS = 8  # full Newton steps; the damped tensor iteration takes over afterwards

# GradVac (`projection`)
GRADVAC_SINE_SQUARED = 1e-12  # lower bound of 1 − φ², for target cosines near ±1
