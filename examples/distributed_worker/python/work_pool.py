"""The pool of this example: Holdfast's SQLite backend, in the example's own folder."""

from pathlib import Path

from holdfast.facades.flatagents import BackendConfig, Backends, create_backends

FOLDER = Path(__file__).parents[1]
POOL = "echo"


def config(data: str | None = None) -> BackendConfig:
    """Both backends in one file: `data/worker.sqlite`, unless you name another folder."""
    path = str(Path(data or FOLDER / "data").absolute() / "worker.sqlite")
    return BackendConfig("sqlite", "sqlite", registration_path=path, work_path=path)


def backends(data: str | None = None) -> Backends:
    return create_backends(config(data))
