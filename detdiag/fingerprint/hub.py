"""Where a model that was named by its hub id lies on this machine."""

from __future__ import annotations

from pathlib import Path


def cached_snapshot(repo_id: str, revision: str | None = None) -> Path | None:
    """Folder of the cached snapshot of ``repo_id``; None where nothing is cached (nothing is
    downloaded).

    Uses ``huggingface_hub.try_to_load_from_cache``, which follows ``HF_HUB_CACHE`` and
    ``HF_HOME`` and resolves branch names through the cache's own ``refs``.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
