"""One front end (`static/`, no network) and what it is told: `data.py` makes the payload, `report.py` the file."""
