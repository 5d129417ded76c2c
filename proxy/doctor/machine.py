"""This machine: its folder, its disk, its journals, its limits. Law: no lock is taken and nothing is opened for writing
that a running proxy writes to."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from proxy.doctor.finding import Case, Finding, error, ok, warning
from proxy.journal.frames import FrameKind, UndecodableError, decode_seqs, scan
from proxy.journal.segment import SUFFIX
from proxy.keys.secrets import load_pepper
from proxy.runtime.machine.data_folder import DataFolder

# Where a lock, a memory map or an fsync may mean less than on a disk of this machine; and where nothing lasts.
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "ceph"})
_FLEETING = frozenset({"tmpfs", "ramfs", "overlay"})
_MIB = 1 << 20
# Below this an hour's outage of the ledger would already stop the work.
_FREE_BYTES_MIN = 256 * _MIB
# The client's side, the provider's side, and what the process needs besides.
_FILES_PER_STREAM, _FILES_BESIDES = 2, 256
_SMALL = "journal.bytes_max is larger than what is left: make room, or set it lower"


def data_folder(case: Case) -> list[Finding]:
    """Whether it can be written to, by its owner alone, on a disk of this machine with room left."""
    folder = case.settings.data_dir
    if not folder.is_dir():
        return [_absent(folder)]
    return [_writable(folder), *_open_to_others(folder), *_kind(folder), _room(case), *_pepper(case)]


def _absent(folder: Path) -> Finding:
    parent = next(above for above in folder.absolute().parents if above.is_dir())
    if not os.access(parent, os.W_OK):
        return error("data folder", f"{folder} is not there, and {parent} may not be written to", _OWN.format(folder))
    return warning("data folder", f"{folder} is not there yet", "nothing: `tokenweir serve` makes it")


_OWN = "make {0} for the user that serves: install -d -m 700 -o tokenweir {0}"


def _writable(folder: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tokenweir doctor")
            file.flush()
            os.fsync(file.fileno())
    except OSError as refused:
        words = f"{folder} cannot be written to: {refused.strerror}"
        return error("data folder", words, "run this as the user that serves; else mend its owner, or the disk")
    return ok("data folder", f"{folder} can be written to")


def _open_to_others(folder: Path) -> Iterator[Finding]:
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        yield warning("data folder", f"others may look into {folder} (mode {mode:o})", f"chmod 700 {folder}")


def _kind(folder: Path) -> Iterator[Finding]:
    kind = file_system(folder.resolve(), Path("/proc/self/mountinfo"))
    if kind in _REMOTE:
        yield error("data folder", f"{folder} is on {kind}", "journals need a disk of this machine: locks, maps, fsync")
    if kind in _FLEETING:
        yield warning(
            "data folder",
            f"{folder} is on {kind}: it is gone with the machine or container",
            "put it on a volume, or what is on its way to the ledger goes with it",
        )


def file_system(folder: Path, mounts: Path) -> str | None:
    """The type of the file system `folder` is on, by Linux's table of mounts; None if that cannot be read."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    found = [(fields[4].replace("\\040", " "), fields[fields.index("-") + 1]) for fields in map(str.split, lines)]
    above = [(len(place), order, kind) for order, (place, kind) in enumerate(found) if folder.is_relative_to(place)]
    return max(above)[2] if above else None


def _room(case: Case) -> Finding:
    folder, wanted = case.settings.data_dir, case.settings.journal.bytes_max
    free = shutil.disk_usage(folder).free
    said = f"{free // _MIB} MiB are free below {folder}"
    if free < _FREE_BYTES_MIN:
        return error("data folder", said, "make room: a full disk stops new requests")
    return warning("data folder", said, _SMALL) if free < wanted else ok("data folder", said)


def _pepper(case: Case) -> Iterator[Finding]:
    """Without the pepper no key opens anything."""
    pepper = case.settings.data_dir / "pepper"
    if case.settings.key_pepper is None and pepper.exists():
        try:
            load_pepper(pepper)
        except (OSError, ValueError) as wrong:
            yield error("data folder", str(wrong), "put it back from the backup: no key is accepted without it")


def journal(case: Case) -> list[Finding]:
    """Of every process that has one here: what waits, how full it is, whether it is as it was written."""
    places = [folder.journal for folder in DataFolder(case.settings.data_dir).left_behind(0)]
    alone = DataFolder(case.settings.data_dir).journal
    places = ([alone] if alone.is_dir() else []) + places
    if not places:
        return [ok("journal", "none yet")]
    return [finding for place in places for finding in _journal(place, case.settings.journal.bytes_max)]


def _journal(place: Path, bytes_max: int) -> Iterator[Finding]:
    waiting, size_bytes, gaps = read(place)
    kept_aside = list((place / "quarantine").glob("*"))
    if gaps or kept_aside:
        said = f"{place} is damaged: {gaps} gaps, {len(kept_aside)} pieces kept aside"
        yield error("journal", said, "see the log; test the disk; then move `quarantine` to where you keep evidence")
    said = f"{place}: {waiting} records wait for the ledger, {size_bytes / _MIB:.1f} of {bytes_max // _MIB} MiB"
    if size_bytes >= bytes_max:
        yield error("journal", said, "see why the ledger takes none: new requests get 503")
    elif size_bytes >= bytes_max // 2:
        yield warning("journal", said, "see why the ledger takes none; or it is away")
    else:
        yield ok("journal", said)


def read(place: Path) -> tuple[int, int, int]:
    """Records that are not settled, bytes, gaps. A proxy may be writing to it: what it is at is neither."""
    closed: set[int] = set()
    settled: set[int] = set()
    size_bytes = gaps = 0
    for path in sorted(place.glob(f"*{SUFFIX}")):
        try:
            image = path.read_bytes()
        except FileNotFoundError:  # all that was in it has just been settled
            continue
        found = scan(image)
        size_bytes += len(image)
        gaps += len(found.gaps)
        closed |= {frame.seq for frame in found.frames if frame.kind == FrameKind.CLOSE}
        for frame in found.frames:
            settled |= set(_seqs(frame.payload)) if frame.kind == FrameKind.SETTLED else set()
    return len(closed - settled), size_bytes, gaps


def _seqs(payload: bytes) -> list[int]:
    try:
        return list(decode_seqs(payload))
    except UndecodableError:  # of a later version: the journal keeps it aside, and says so
        return []


def open_files(case: Case) -> list[Finding]:
    """Whether as many streams as are configured can be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [ok("open files", "no limit")]
    room = max(0, soft - _FILES_BESIDES) // _FILES_PER_STREAM
    said = f"{soft} here: room for {room} streams at once, exchanges_max is {case.settings.exchanges_max}"
    if room >= case.settings.exchanges_max:
        return [ok("open files", said)]
    return [warning("open files", said, "raise the service's own limit: LimitNOFILE= of systemd, or `ulimit -n`")]
