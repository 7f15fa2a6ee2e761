"""What a reproduction has measured; the figures and the table of effects read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clearhead.maps import Table
from clearhead.probes.probe import Distance, Kind
from clearhead.probes.token_identifiability import TokenIdentifiability
from clearhead.studies.attention import RawAndEffective
from clearhead.studies.mixing import Mixing


@dataclass(frozen=True)
class Results:
    """Everything measured on one model. `layers`: its number; `value_width`: d_v of a head."""

    model: str
    layers: int
    value_width: int
    attention: RawAndEffective
    recovered: Mapping[tuple[Kind, Distance], TokenIdentifiability]
    nearest: TokenIdentifiability | None
    """Linear cosine probes trained to choose among the candidates (loss "nearest")."""
    between: Table | None
    data_size: Table | None
    ablation: Table | None
    mixing: Mixing

    def rate(self, kind: Kind, distance: Distance, depth: int) -> float | None:
        """Test rate of a probe at a depth; None where it was not measured."""
        found = self.recovered.get((kind, distance))
        if found is None or depth not in found.depths:
            return None
        return float(found.test[found.depths.index(depth)])
