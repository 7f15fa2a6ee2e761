"""Many texts into Parquet: what is left, run, store. A run that dies loses nothing; `on_ray.py` alone knows Ray."""
