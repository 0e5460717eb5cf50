"""What is installed: its name on a package index, its version, how to add an extra, and a namesake beside it.

The name of the distribution is not that of the package. `holdfast` on the package index is another project, which
writes into the same folder `holdfast`. No file of theirs is called as this one, so it can still name them.
"""

import os
import sys

NAME = "holdfast-agents"
VERSION = "0.1.0"


def how_to_install(extra: str) -> str:
    """The command that adds an extra. pip takes the extra from what is installed, also from a checkout."""
    return f"pip install '{NAME}[{extra}]', or '.[{extra}]' in a checkout"


def namesake() -> str:
    """Which other distribution brings a package `holdfast` to this environment, and what to do; empty: there is none.

    It lists two or three folders and reads no file, so that every import can afford it.
    """
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  pathlib costs 10 ms
    shared = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    for place in dict.fromkeys([ours, *shared]):
        try:
            names = os.listdir(place)  # noqa: PTH208
        except OSError:
            continue  # a folder that does not exist, or a zip file
        for name in names:
            if name.startswith(("holdfast-", "holdfast.egg-info")) and name.endswith("-info"):
                return (
                    f"another project, the distribution 'holdfast' ({name} in {place}), is installed beside {NAME}. "
                    f"Both have a package named 'holdfast', so one hides or overwrites the other. "
                    f"Run `pip uninstall holdfast`, then install {NAME} again with --force-reinstall."
                )
    return ""


def warn_of_namesake() -> None:
    """Say it where `holdfast` is imported."""
    if said := namesake():
        import warnings

        warnings.warn(said, RuntimeWarning, stacklevel=3)
