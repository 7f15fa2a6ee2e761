"""Map and Table: numbers that leave with their axes, labels, unit and origin."""

from clearhead.maps.map import Map
from clearhead.maps.table import Table

__all__ = ["Map", "Table"]
