"""The laboratory: data, models and the studies that compare methods on them (extra: counterpoise[lab])."""
