"""Token identifiability with trained probes: features on disk, training, rates with intervals, experiments."""

from clearhead.probes.experiments import cross_layer, data_size_curve, neighbour_recovery, size_ablation
from clearhead.probes.features import Features, write_features
from clearhead.probes.probe import Probe, Recipe
from clearhead.probes.token_identifiability import TokenIdentifiability, identify, token_identifiability

__all__ = [
    "Features",
    "Probe",
    "Recipe",
    "TokenIdentifiability",
    "cross_layer",
    "data_size_curve",
    "identify",
    "neighbour_recovery",
    "size_ablation",
    "token_identifiability",
    "write_features",
]
