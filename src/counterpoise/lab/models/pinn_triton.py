"""CUDA kernels of physics-informed networks, for jets (R, C, N, H) up to second order along two directions.

`tanh_jet` is the reference implementation. `o0` and `o1` are the orders along the two directions. A program handles a
block of one channel, or all units of a few points where it adds up over units or points.
"""

import triton
import triton.language as tl
from torch._inductor.runtime.triton_helpers import libdevice


@triton.jit  # type: ignore[untyped-decorator]
def _activate(z, out, start, plane, t, inside, order: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the derivatives of tanh along one direction."""
    first = tl.load(z + start, inside, other=0.0)
    product = (1 - t * t) * first
    tl.store(out + start, product, inside)
    if order == 2:
        second = tl.load(z + start + plane, inside, other=0.0)
        tl.store(out + start + plane, (1 - t * t) * second - 2 * t * first * product, inside)


@triton.jit  # type: ignore[untyped-decorator]
def activation(  # type: ignore[no-untyped-def]
    z, bias, out, plane, width, channels: tl.constexpr, o0: tl.constexpr, o1: tl.constexpr, block: tl.constexpr
):
    """Apply tanh to a jet plus a bias."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    run = tl.program_id(1).to(tl.int64)
    inside = place < plane
    base = run * channels * plane + place
    shift = tl.load(bias + run * width + place % width, inside, other=0.0)
    t = libdevice.tanh(tl.load(z + base, inside, other=0.0) + shift)
    tl.store(out + base, t, inside)
    if o0 >= 1:
        _activate(z, out, base + plane, plane, t, inside, o0)
    if o1 >= 1:
        _activate(z, out, base + (1 + o0) * plane, plane, t, inside, o1)


@triton.jit  # type: ignore[untyped-decorator]
def _differentiate(g1, g2, first, second, t, order: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the gradient of the first derivative, and what one direction subtracts from that of the value.

    Both are without the factor 1 − t².
    """
    change = 2 * t * g1 * first
    if order == 2:
        change += 2 * t * g2 * second + (2 - 6 * t * t) * g2 * first * first
        g1 -= 4 * t * g2 * first
    return g1, change


@triton.jit  # type: ignore[untyped-decorator]
def _activate_backward(grad, z, out, start, plane, t, inside, order: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.load(z + start, inside, other=0.0)
    g1 = tl.load(grad + start, inside, other=0.0)
    g2 = g1
    second = first
    if order == 2:
        g2 = tl.load(grad + start + plane, inside, other=0.0)
        second = tl.load(z + start + plane, inside, other=0.0)
        tl.store(out + start + plane, (1 - t * t) * g2, inside)
    g1, change = _differentiate(g1, g2, first, second, t, order)
    tl.store(out + start, (1 - t * t) * g1, inside)
    return change


@triton.jit  # type: ignore[untyped-decorator]
def activation_backward(  # type: ignore[no-untyped-def]
    grad, z, tanh, out, plane, channels: tl.constexpr, o0: tl.constexpr, o1: tl.constexpr, block: tl.constexpr
):
    """Return the gradient of z; channel 0 of `tanh` is the value of the activation."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    run = tl.program_id(1).to(tl.int64)
    inside = place < plane
    base = run * channels * plane + place
    t = tl.load(tanh + base, inside, other=0.0)
    value = tl.load(grad + base, inside, other=0.0)
    if o0 >= 1:
        value -= _activate_backward(grad, z, out, base + plane, plane, t, inside, o0)
    if o1 >= 1:
        value -= _activate_backward(grad, z, out, base + (1 + o0) * plane, plane, t, inside, o1)
    tl.store(out + base, (1 - t * t) * value, inside)


@triton.jit  # type: ignore[untyped-decorator]
def _activate_slope(slope, out, start, plane, t, inside, order: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the derivatives of tanh of a linear function with a given slope."""
    product = (1 - t * t) * slope
    tl.store(out + start, product, inside)
    if order == 2:
        tl.store(out + start + plane, -2 * t * slope * product, inside)


@triton.jit  # type: ignore[untyped-decorator]
def input_layer(  # type: ignore[no-untyped-def]
    x,
    weight,
    slopes,
    bias,
    out,
    plane,
    width,
    channels: tl.constexpr,
    o0: tl.constexpr,
    o1: tl.constexpr,
    directions: tl.constexpr,
    block: tl.constexpr,
):
    """Return the jet of tanh(x·weight + bias) at points x (R, N, 2), from its slopes (R, K, H) before tanh."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    run = tl.program_id(1).to(tl.int64)
    inside = place < plane
    unit = place % width
    point = x + 2 * (run * (plane // width) + place // width)
    row = weight + 2 * run * width + unit
    z = tl.load(bias + run * width + unit, inside, other=0.0)
    z += tl.load(point, inside, other=0.0) * tl.load(row, inside, other=0.0)
    z += tl.load(point + 1, inside, other=0.0) * tl.load(row + width, inside, other=0.0)
    t = libdevice.tanh(z)
    base = run * channels * plane + place
    tl.store(out + base, t, inside)
    source = slopes + run * directions * width + unit
    if o0 >= 1:
        slope = tl.load(source, inside, other=0.0)
        _activate_slope(slope, out, base + plane, plane, t, inside, o0)
    if o1 >= 1:
        slope = tl.load(source + width, inside, other=0.0)
        _activate_slope(slope, out, base + (1 + o0) * plane, plane, t, inside, o1)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(points, width, channels: tl.constexpr, rows: tl.constexpr, units: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return what a program with all units of a few points works on.

    These are its run, points (rows, 1) and units (1, units), which of them exist, the size of a channel of the jet, and
    the places in channel 0.
    """
    run = tl.program_id(1).to(tl.int64)
    point = tl.program_id(0) * rows + tl.arange(0, rows)[:, None]
    unit = tl.arange(0, units)[None, :]
    inside = (point < points) & (unit < width)
    plane = points * width
    return run, point, unit, inside, plane, run * channels * plane + point * width + unit


@triton.jit  # type: ignore[untyped-decorator]
def _slope_backward(grad, slope, start, plane, t, inside, order: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the sum over points of the gradient of a slope, and what it subtracts from that of the value."""
    g1 = tl.load(grad + start, inside, other=0.0)
    g2 = g1
    if order == 2:
        g2 = tl.load(grad + start + plane, inside, other=0.0)
    g1, change = _differentiate(g1, g2, slope, 0.0 * slope, t, order)
    return tl.sum((1 - t * t) * g1, 0), change


@triton.jit  # type: ignore[untyped-decorator]
def input_layer_backward(  # type: ignore[no-untyped-def]
    grad,
    tanh,
    x,
    slopes,
    sums,
    points,
    width,
    channels: tl.constexpr,
    o0: tl.constexpr,
    o1: tl.constexpr,
    directions: tl.constexpr,
    rows: tl.constexpr,
    units: tl.constexpr,
):
    """Add up the gradients of the bias, of the two rows of the weight, and of the slopes over a few points."""
    run, point, unit, inside, plane, base = _tile(points, width, channels, rows, units)
    t = tl.load(tanh + base, inside, other=0.0)
    value = tl.load(grad + base, inside, other=0.0)
    column = tl.arange(0, units)
    kept = column < width
    target = sums + (run * tl.num_programs(0) + tl.program_id(0)) * (3 + directions) * width + column
    source = slopes + run * directions * width + unit
    if o0 >= 1:
        slope = tl.load(source, unit < width, other=0.0)
        total, change = _slope_backward(grad, slope, base + plane, plane, t, inside, o0)
        value -= change
        tl.store(target + 3 * width, total, kept)
    if o1 >= 1:
        slope = tl.load(source + width, unit < width, other=0.0)
        total, change = _slope_backward(grad, slope, base + (1 + o0) * plane, plane, t, inside, o1)
        value -= change
        tl.store(target + 4 * width, total, kept)
    value = (1 - t * t) * value
    place = x + 2 * (run * points + point)
    tl.store(target, tl.sum(value, 0), kept)
    tl.store(target + width, tl.sum(value * tl.load(place, point < points, other=0.0), 0), kept)
    tl.store(target + 2 * width, tl.sum(value * tl.load(place + 1, point < points, other=0.0), 0), kept)


@triton.jit  # type: ignore[untyped-decorator]
def _contract(z, factor, target, start, plane, points, t, inside, kept, order: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store the derivatives of the output along one direction."""
    first = tl.load(z + start, inside, other=0.0)
    product = (1 - t * t) * first
    tl.store(target, tl.sum(product * factor, 1), kept)
    if order == 2:
        second = (1 - t * t) * tl.load(z + start + plane, inside, other=0.0) - 2 * t * first * product
        tl.store(target + points, tl.sum(second * factor, 1), kept)


@triton.jit  # type: ignore[untyped-decorator]
def output_layer(  # type: ignore[no-untyped-def]
    z,
    bias,
    weight,
    out,
    points,
    width,
    channels: tl.constexpr,
    o0: tl.constexpr,
    o1: tl.constexpr,
    rows: tl.constexpr,
    units: tl.constexpr,
):
    """Return the jet (R, C, N) of tanh(z + bias)·weight."""
    run, _, unit, inside, plane, base = _tile(points, width, channels, rows, units)
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    target = out + run * channels * points + row
    kept = row < points
    factor = tl.load(weight + run * width + unit, unit < width, other=0.0)
    shift = tl.load(bias + run * width + unit, unit < width, other=0.0)
    t = libdevice.tanh(tl.load(z + base, inside, other=0.0) + shift)
    tl.store(target, tl.sum(t * factor, 1), kept)
    if o0 >= 1:
        _contract(z, factor, target + points, base + plane, plane, points, t, inside, kept, o0)
    if o1 >= 1:
        after = 1 + o0
        _contract(z, factor, target + after * points, base + after * plane, plane, points, t, inside, kept, o1)


@triton.jit  # type: ignore[untyped-decorator]
def _contract_backward(  # type: ignore[no-untyped-def]
    source, z, factor, out, start, plane, points, t, inside, given, order: tl.constexpr
):
    """Store the gradients of z along one direction; return those of the output weights and of the value."""
    first = tl.load(z + start, inside, other=0.0)
    u1 = tl.load(source, given, other=0.0)
    product = (1 - t * t) * first
    total = u1 * product
    g1 = u1 * factor
    g2 = g1
    second = first
    if order == 2:
        second = tl.load(z + start + plane, inside, other=0.0)
        u2 = tl.load(source + points, given, other=0.0)
        total += u2 * ((1 - t * t) * second - 2 * t * first * product)
        g2 = u2 * factor
        tl.store(out + start + plane, (1 - t * t) * g2, inside)
    g1, change = _differentiate(g1, g2, first, second, t, order)
    tl.store(out + start, (1 - t * t) * g1, inside)
    return total, change


@triton.jit  # type: ignore[untyped-decorator]
def output_layer_backward(  # type: ignore[no-untyped-def]
    grad,
    z,
    bias,
    weight,
    out,
    sums,
    points,
    width,
    channels: tl.constexpr,
    o0: tl.constexpr,
    o1: tl.constexpr,
    rows: tl.constexpr,
    units: tl.constexpr,
):
    """Return the gradient of z, and add up those of the bias and of the output weights over a few points."""
    run, point, unit, inside, plane, base = _tile(points, width, channels, rows, units)
    source = grad + run * channels * points + point
    given = point < points
    factor = tl.load(weight + run * width + unit, unit < width, other=0.0)
    shift = tl.load(bias + run * width + unit, unit < width, other=0.0)
    t = libdevice.tanh(tl.load(z + base, inside, other=0.0) + shift)
    u0 = tl.load(source, given, other=0.0)
    value = u0 * factor
    total = u0 * t
    if o0 >= 1:
        more, change = _contract_backward(
            source + points, z, factor, out, base + plane, plane, points, t, inside, given, o0
        )
        total += more
        value -= change
    if o1 >= 1:
        after = 1 + o0
        more, change = _contract_backward(
            source + after * points, z, factor, out, base + after * plane, plane, points, t, inside, given, o1
        )
        total += more
        value -= change
    value = (1 - t * t) * value
    tl.store(out + base, value, inside)
    column = tl.arange(0, units)
    target = sums + (run * tl.num_programs(0) + tl.program_id(0)) * 2 * width + column
    tl.store(target, tl.sum(value, 0), column < width)
    tl.store(target + width, tl.sum(total, 0), column < width)


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    """Apply the finaliser of splitmix64. The masks make the shifts fill with zeros."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def uniform_draws(seeds, step, out, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Draw `count` numbers per seed uniformly from (0, 1), as `counterpoise.functional.uniform` does."""
    place = tl.program_id(0) * block + tl.arange(0, block)
    run = tl.program_id(1).to(tl.int64)
    inside = place < count
    seed = tl.load(seeds + run + place * 0, inside, other=0)
    index = tl.load(step + place * 0, inside, other=0) * count + place + 1
    bits = _mix(_mix(seed) + index * -0x61C8864680B583EB)
    draws = (((bits >> 12) & 0xFFFFFFFFFFFFF).to(tl.float64) + 0.5) * 2.220446049250313e-16
    tl.store(out + run * count + place, draws.to(tl.float32), inside)
