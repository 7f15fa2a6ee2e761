"""Loaded by the fork server: a tiny model traced once, so that what loads on first use is there before the forks."""

import pandas as pd  # noqa: F401
import pyarrow.parquet as pq  # noqa: F401
import torch
from tiny import tiny

from clearhead.corpus import finish, run, work  # noqa: F401
from clearhead.corpus.summaries import summaries
from clearhead.methods.attention_rollout import attention_rollout
from clearhead.models.load import load

torch.set_num_threads(1)  # no thread may be there when the server forks
trace = load(tiny("bert")).trace("w1 w2 w3")
summaries(trace, attention_rollout(trace))
