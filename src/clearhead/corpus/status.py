"""What a corpus directory holds, in words."""

from __future__ import annotations

from pathlib import Path

from clearhead.corpus import store


def status(folder: str | Path) -> str:
    """Model, methods, finished shards, documents, tokens, errors, size. Errors: InputError where it is no corpus."""
    folder = Path(folder)
    manifest = store.read_manifest(folder)
    source = manifest["source"]
    settings = source["settings"]
    counts = dict.fromkeys(("documents", "failed", "tokens", "halved", "bytes"), 0)
    shards, broken = 0, 0
    for path in (folder / store.SHARDS).iterdir():
        found = store.read_shard(path)
        if found is None:
            broken += 1
            continue
        shards += 1
        size = sum(file["bytes"] for file in found["files"].values())
        for name, value in {**found, "bytes": size}.items():
            if name in counts:
                counts[name] += value
    state = "complete" if manifest["complete"] and not broken else "not complete: run the same command again"
    lines = [
        f"{folder}: {state}",
        f"  model      {source['model']['model']} ({source['model']['revision'][:24]}, {source['model']['dtype']})",
        f"  methods    {', '.join(settings['methods'])}; {settings['granularity']}",
        f"  documents  {counts['documents']:,} in {shards:,} shards, {counts['tokens']:,} tokens",
        f"  size       {counts['bytes']:,} bytes",
        f"  failed     {counts['failed']:,}",
    ]
    if counts["halved"]:
        lines.append(
            f"  memory     was short {counts['halved']:,} times: those batches were halved, and round otherwise"
        )
    if broken:
        lines.append(f"  cut short  {broken} shards: they are done again")
    return "\n".join(lines)
