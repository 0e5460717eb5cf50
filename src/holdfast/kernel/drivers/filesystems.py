"""What lies under a path. SQLite's locks cannot be trusted on a network file system, so those are refused."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import StoreUnfit

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb2",
        "smb3",
        "smbfs",
        "virtiofs",
    ]
)


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds `path`, read from the text of mountinfo; "" when it does not say."""
    best, kind = "", ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if not separator or len(fields) < 5:
            continue
        point = fields[4].encode().decode("unicode_escape")
        if (path == Path(point) or Path(point) in path.parents) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def refuse_network(path: Path, mounts: Path = MOUNTS) -> None:
    try:
        text = mounts.read_text()
    except OSError:
        return
    kind = filesystem_of(path.resolve(), text)
    if kind in NETWORK:
        raise StoreUnfit(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold. "
            f"Put the file on a local disk, or use postgresql:// to work from several machines."
        )
