"""Certificates that the tests make themselves, and what clients and servers need to use them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import trustme

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Certificates:
    """An authority and the files that it has signed, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str = "server", *, is_expired: bool = False) -> tuple[Path, Path]:
        """Return the files of a certificate for this machine and of its key; those of the same name are replaced."""
        times = {"not_before": LONG_AGO, "not_after": LONG_AGO.replace(year=2021)} if is_expired else {}
        made = self.authority.issue_cert("localhost", "127.0.0.1", **times)
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        paths[0].write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(paths[1]))
        return paths

    def client(self, own: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """Return what a client uses that trusts this authority, and has a certificate of its `own`."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if own is not None:
            context.load_cert_chain(*own)
        return context
