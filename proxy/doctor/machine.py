"""Checks this machine: data folder, disk, journals, open-file limit. Invariants: a check takes no lock, and opens no
file of a running proxy for writing."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from proxy.doctor.finding import CheckedDeployment, Finding, error, ok, warning
from proxy.journal.frames import FrameKind, UndecodableError, decode_seqs, scan
from proxy.journal.segment import SUFFIX
from proxy.keys.secrets import load_pepper
from proxy.runtime.machine.data_folder import DataFolder

# File systems whose locks, memory maps or fsync are weaker than a local disk's; and those that do not persist.
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "ceph"})
_VOLATILE = frozenset({"tmpfs", "ramfs", "overlay"})
_MIB = 1 << 20
# With less, a ledger outage of an hour stops new requests.
_FREE_BYTES_MIN = 256 * _MIB
# A client and a provider connection per stream; and the other files of the process.
_FILES_PER_STREAM, _OTHER_FILES = 2, 256
_SMALL = "free space is less than journal.bytes_max: free disk space, or lower the setting"


def data_folder(case: CheckedDeployment) -> list[Finding]:
    """Check that the data folder is writable, private to its owner, on a local disk and with free space."""
    folder = case.settings.data_dir
    if not folder.is_dir():
        return [_missing(folder)]
    return [_writable(folder), *_open_to_others(folder), *_kind(folder), _free_space(case), *_pepper(case)]


def _missing(folder: Path) -> Finding:
    parent = next(above for above in folder.absolute().parents if above.is_dir())
    if not os.access(parent, os.W_OK):
        return error("data folder", f"{folder} does not exist, and {parent} is not writable", _CREATE.format(folder))
    return warning("data folder", f"{folder} does not exist yet", "nothing to do: `tokenweir serve` creates it")


_CREATE = "create {0} for the user of the service: install -d -m 700 -o tokenweir {0}"


def _writable(folder: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"tokenweir doctor")
            file.flush()
            os.fsync(file.fileno())
    except OSError as failure:
        message = f"{folder} is not writable: {failure.strerror}"
        return error(
            "data folder", message, "run this as the user of the service, or correct the owner, or check the disk"
        )
    return ok("data folder", f"{folder} is writable")


def _open_to_others(folder: Path) -> Iterator[Finding]:
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        yield warning("data folder", f"other users can access {folder} (mode {mode:o})", f"run `chmod 700 {folder}`")


def _kind(folder: Path) -> Iterator[Finding]:
    kind = file_system(folder.resolve(), Path("/proc/self/mountinfo"))
    if kind in _REMOTE:
        yield error(
            "data folder", f"{folder} is on {kind}", "move it to a local disk: journals need locks, mmap and fsync"
        )
    if kind in _VOLATILE:
        yield warning(
            "data folder",
            f"{folder} is on {kind}: its files are lost with the machine or container",
            "move it to a volume; otherwise records in flight to the ledger may be lost",
        )


def file_system(folder: Path, mounts: Path) -> str | None:
    """The file system type of `folder`, from Linux's mount table; None if the table cannot be read."""
    try:
        lines = mounts.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return None
    points = [(fields[4].replace("\\040", " "), fields[fields.index("-") + 1]) for fields in map(str.split, lines)]
    above = [(len(point), order, kind) for order, (point, kind) in enumerate(points) if folder.is_relative_to(point)]
    return max(above)[2] if above else None


def _free_space(case: CheckedDeployment) -> Finding:
    folder, needed = case.settings.data_dir, case.settings.journal.bytes_max
    free = shutil.disk_usage(folder).free
    message = f"{free // _MIB} MiB are free below {folder}"
    if free < _FREE_BYTES_MIN:
        return error("data folder", message, "free disk space: a full disk stops new requests")
    return warning("data folder", message, _SMALL) if free < needed else ok("data folder", message)


def _pepper(case: CheckedDeployment) -> Iterator[Finding]:
    pepper, configured = case.settings.data_dir / "pepper", case.settings.key_pepper
    if not pepper.exists():
        return
    try:
        earlier = load_pepper(pepper)
    except (OSError, ValueError) as failure:
        if configured is None:
            yield error("data folder", str(failure), "restore it from the backup: no key is accepted without it")
        return
    if configured is not None and bytes.fromhex(configured.reveal()) != earlier:
        yield warning("data folder", f"key_pepper is not the secret in {pepper}: earlier keys are refused", _PEPPER)


_PEPPER = (
    "set it to the output of `tokenweir keys pepper --config FILE` with the earlier configuration; "
    "if a new pepper is intended, delete the file"
)


def journal(case: CheckedDeployment) -> list[Finding]:
    """The backlog, size and integrity of every process's journal."""
    folders = [folder.journal for folder in DataFolder(case.settings.data_dir).left_behind()]
    alone = DataFolder(case.settings.data_dir).journal
    folders = ([alone] if alone.is_dir() else []) + folders
    if not folders:
        return [ok("journal", "none yet")]
    return [finding for folder in folders for finding in _journal(folder, case.settings.journal.bytes_max)]


def _journal(folder: Path, bytes_max: int) -> Iterator[Finding]:
    pending, size_bytes, gaps = read(folder)
    quarantined = list((folder / "quarantine").glob("*"))
    if gaps or quarantined:
        message = f"{folder} is damaged: {gaps} gaps, {len(quarantined)} quarantined pieces"
        yield error("journal", message, "check the log and the disk, then move `quarantine` out of the folder")
    message = f"{folder}: {pending} records pending, {size_bytes / _MIB:.1f} of {bytes_max // _MIB} MiB"
    if size_bytes >= bytes_max:
        yield error("journal", message, "check why no records reach the ledger: new requests get 503")
    elif size_bytes >= bytes_max // 2:
        yield warning("journal", message, "check why no records reach the ledger")
    else:
        yield ok("journal", message)


def read(folder: Path) -> tuple[int, int, int]:
    """The number of unsettled records, the size in bytes, and the number of gaps of a journal. A frame that a proxy is
    still writing counts as neither record nor gap."""
    closed: set[int] = set()
    settled: set[int] = set()
    size_bytes = gaps = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            image = path.read_bytes()
        except FileNotFoundError:  # all its records have just been settled
            continue
        content = scan(image)
        size_bytes += len(image)
        gaps += len(content.gaps)
        for frame in content.frames:
            if frame.kind == FrameKind.CLOSE:
                closed.add(frame.seq)
                settled.discard(frame.seq)  # it is pending again: the ledger has lost it
            elif frame.kind == FrameKind.SETTLED:
                settled.update(_seqs(frame.payload))
    return len(closed - settled), size_bytes, gaps


def _seqs(payload: bytes) -> list[int]:
    try:
        return list(decode_seqs(payload))
    except UndecodableError:  # of a later version: the journal quarantines and logs it
        return []


def open_files(case: CheckedDeployment) -> list[Finding]:
    """Check that the limit of open files allows `exchanges_max` concurrent streams."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return [ok("open files", "no limit")]
    possible = max(0, soft - _OTHER_FILES) // _FILES_PER_STREAM
    message = f"{soft} allowed, enough for {possible} streams; exchanges_max is {case.settings.exchanges_max}"
    if possible >= case.settings.exchanges_max:
        return [ok("open files", message)]
    return [warning("open files", message, "raise the limit of the service: LimitNOFILE= of systemd, or `ulimit -n`")]
