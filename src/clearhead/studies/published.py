"""What Brunner et al. 2020 (arXiv 1908.04211) report of BERT-base uncased, most read off their figures (+- .005)."""

from __future__ import annotations

MODEL = "bert-base-uncased"
LAYERS = tuple(range(1, 13))

PEARSON = ((20, 1.0), (64, 1.0), (66, 0.945), (68.5, 0.81), (71, 0.71), (74, 0.63), (82, 0.60), (88, 0.545))
"""Figure 1a: (tokens, r); from 90 to 128 tokens r lies between .40 and .55."""
PEARSON_LONG = (90, 128, 0.40, 0.55)

ATTENTION = {
    ("raw", "separator"): (0.021, 0.047, 0.074, 0.210, 0.477, 0.547, 0.529, 0.566, 0.567, 0.482, 0.063, 0.068),
    ("effective", "separator"): (0.020, 0.052, 0.081, 0.052, 0.028, 0.035, 0.033, 0.034, 0.032, 0.032, 0.046, 0.018),
    ("raw", "start"): (0.060, 0.251, 0.239, 0.143, 0.025, 0.012, 0.011, 0.007, 0.010, 0.015, 0.022, 0.004),
    ("effective", "start"): (0.023, 0.103, 0.078, 0.046, 0.021, 0.014, 0.013, 0.005, 0.011, 0.013, 0.017, 0.006),
    ("raw", "full stop or comma"): (0.064, 0.108, 0.083, 0.083, 0.048, 0.045, 0.045, 0.053, 0.050, 0.075, 0.502, 0.567),
    ("effective", "full stop or comma"): (
        (0.061, 0.094, 0.078, 0.074, 0.046, 0.042, 0.042, 0.048, 0.055, 0.079, 0.115, 0.065)
    ),
}
"""Figures 1b and 1c: mean attention to a type of token, by layer."""

RECOVERED = {
    ("naive", "cosine"): (1.0, 0.999, 0.982, 0.966, 0.904, 0.815, 0.738, 0.613, 0.552, 0.412, 0.21, 0.49),
    ("naive", "l2"): (1.0, 1.0, 0.985, 0.966, 0.895, 0.80, 0.70, 0.53, 0.413, 0.278, 0.136, 0.18),
    ("linear", "cosine"): (1.0, None, None, None, None, 0.996, None, None, None, None, 0.953, 0.935),
    ("linear", "l2"): (1.0, 1.0, 0.995, 0.989, 0.982, 0.969, 0.946, 0.925, 0.895, 0.818, 0.771, 0.732),
    ("mlp", "cosine"): (1.0, 1.0, 1.0, 1.0, 1.0, 0.999, 0.997, 0.994, 0.989, 0.979, 0.949, 0.941),
    ("mlp", "l2"): (1.0, 1.0, 1.0, 0.997, 0.990, 0.980, 0.966, 0.953, 0.931, 0.881, 0.825, 0.820),
}
"""Figure 2a: share of tokens recovered, by layer; None where the figure cannot be read."""

BETWEEN = {
    1: (1.0, 1.0, 0.983, 0.973, 0.968, 0.960, 0.954, 0.934, 0.891, 0.812, 0.677, 0.685),
    6: (0.997, 0.999, 0.995, 0.994, 0.994, 0.996, 0.990, 0.981, 0.935, 0.877, 0.822, 0.775),
    12: (0.976, 0.984, 0.977, 0.977, 0.975, 0.973, 0.972, 0.966, 0.953, 0.922, 0.917, 0.935),
}
"""Figure 2b: linear cosine probes, trained on one layer, tested on all."""

OWN = (30.6, 22.9, 21.3, 18.8, 15.7, 14.4, 13.4, 12.7, 11.7, 10.3, 9.8, 9.9)
"""Figure 3a: contribution of the own input token in %, median by layer."""
NOT_LARGEST = (0.0, 0.0, 0.0, 3.3, 7.5, 13.5, 15.0, 18.0, 21.3, 29.7, 31.9, 31.6)
"""Figure 3b: % of the tokens to which another input token contributes most."""

BY_DISTANCE = {
    "1st": (10.01, 9.31, 10.18, 9.58, 8.73, 8.42, 8.19, 7.80, 7.37, 6.94, 6.68, 6.74),
    "11th on": (5.19, 7.04, 7.09, 7.55, 8.40, 8.48, 8.68, 8.95, 9.19, 9.61, 9.91, 9.89),
}
"""Figure 4a: contribution of neighbours by distance; each curve sums to 100 over the layers."""
BY_OFFSET = {-10: 0.12, -2: 0.53, -1: 1.0, 1: 0.79, 2: 0.41, 10: 0.11}
"""Figure 4b, layer 1: contribution by offset, relative to the largest."""
