"""What attention in a transformer can and cannot tell you.

    import clearhead as ch

    model = ch.load("demo")
    trace = model.trace("The cat sat on the mat.")
    ch.effective_attention(trace)

Importing this package loads nothing heavy: each public name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from clearhead import errors

if TYPE_CHECKING:
    from clearhead.corpus.dataset import Corpus, open_corpus
    from clearhead.corpus.run import run_corpus
    from clearhead.explorer.notebook import explore, report
    from clearhead.faithfulness.compare import compare
    from clearhead.faithfulness.result import Comparison
    from clearhead.maps import Map, Table
    from clearhead.methods.alti import alti
    from clearhead.methods.attention_attribution import attention_attribution, attribution_tree, head_importance
    from clearhead.methods.attention_flow import attention_flow
    from clearhead.methods.attention_identifiability import attention_identifiability
    from clearhead.methods.attention_rollout import attention_rollout
    from clearhead.methods.attention_shapley import attention_shapley
    from clearhead.methods.decompx import decompx
    from clearhead.methods.effective_attention import effective_attention
    from clearhead.methods.effective_attention_summary import effective_attention_summary
    from clearhead.methods.farthest_attention import farthest_attention
    from clearhead.methods.globenc import globenc
    from clearhead.methods.gradient_norm import gradient_norm
    from clearhead.methods.hidden_token_attribution import hidden_token_attribution
    from clearhead.methods.identifiable_interval import identifiable_interval
    from clearhead.methods.input_x_gradient import input_x_gradient
    from clearhead.methods.integrated_gradients import integrated_gradients
    from clearhead.methods.mixing_ratio import mixing_ratio
    from clearhead.methods.relevance import relevance
    from clearhead.methods.residual_norms import residual_norms
    from clearhead.methods.token_identifiability_naive import token_identifiability_naive
    from clearhead.methods.ttcav import ttcav
    from clearhead.methods.value_zeroing import value_zeroing
    from clearhead.methods.vector_norms import vector_norms
    from clearhead.models.load import load
    from clearhead.models.model import Model
    from clearhead.probes import TokenIdentifiability, token_identifiability
    from clearhead.target import Goal, SimilarTo
    from clearhead.tokens import Tokens
    from clearhead.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Corpus",
    "Goal",
    "Map",
    "Model",
    "SimilarTo",
    "Table",
    "TokenIdentifiability",
    "Tokens",
    "Trace",
    "alti",
    "attention_attribution",
    "attention_flow",
    "attention_identifiability",
    "attention_rollout",
    "attention_shapley",
    "attribution_tree",
    "compare",
    "decompx",
    "effective_attention",
    "effective_attention_summary",
    "errors",
    "explore",
    "farthest_attention",
    "globenc",
    "gradient_norm",
    "head_importance",
    "hidden_token_attribution",
    "identifiable_interval",
    "input_x_gradient",
    "integrated_gradients",
    "load",
    "mixing_ratio",
    "open_corpus",
    "relevance",
    "report",
    "residual_norms",
    "run_corpus",
    "token_identifiability",
    "token_identifiability_naive",
    "ttcav",
    "value_zeroing",
    "vector_norms",
]

_HOME = {
    "Comparison": "clearhead.faithfulness.result",
    "Goal": "clearhead.target",
    "SimilarTo": "clearhead.target",
    "Corpus": "clearhead.corpus.dataset",
    "open_corpus": "clearhead.corpus.dataset",
    "run_corpus": "clearhead.corpus.run",
    "compare": "clearhead.faithfulness.compare",
    "Map": "clearhead.maps",
    "Model": "clearhead.models.model",
    "Table": "clearhead.maps",
    "TokenIdentifiability": "clearhead.probes",
    "Tokens": "clearhead.tokens",
    "Trace": "clearhead.trace",
    "explore": "clearhead.explorer.notebook",
    "load": "clearhead.models.load",
    "report": "clearhead.explorer.notebook",
    "attention_identifiability": "clearhead.methods.attention_identifiability",
    "effective_attention": "clearhead.methods.effective_attention",
    "effective_attention_summary": "clearhead.methods.effective_attention_summary",
    "farthest_attention": "clearhead.methods.farthest_attention",
    "hidden_token_attribution": "clearhead.methods.hidden_token_attribution",
    "identifiable_interval": "clearhead.methods.identifiable_interval",
    "token_identifiability": "clearhead.probes",
    "alti": "clearhead.methods.alti",
    "decompx": "clearhead.methods.decompx",
    "globenc": "clearhead.methods.globenc",
    "mixing_ratio": "clearhead.methods.mixing_ratio",
    "residual_norms": "clearhead.methods.residual_norms",
    "vector_norms": "clearhead.methods.vector_norms",
    "token_identifiability_naive": "clearhead.methods.token_identifiability_naive",
    "attention_flow": "clearhead.methods.attention_flow",
    "attention_rollout": "clearhead.methods.attention_rollout",
    "attention_shapley": "clearhead.methods.attention_shapley",
    "gradient_norm": "clearhead.methods.gradient_norm",
    "input_x_gradient": "clearhead.methods.input_x_gradient",
    "integrated_gradients": "clearhead.methods.integrated_gradients",
    "attention_attribution": "clearhead.methods.attention_attribution",
    "relevance": "clearhead.methods.relevance",
    "ttcav": "clearhead.methods.ttcav",
    "head_importance": "clearhead.methods.attention_attribution",
    "attribution_tree": "clearhead.methods.attention_attribution",
    "value_zeroing": "clearhead.methods.value_zeroing",
}

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the user's program listens


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
