"""A certificate for `localhost` that nobody has signed, and its key. Good for nothing but this."""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path

_PEM = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgjDAilJZl5KgTihij
iTj3mOuVFxnSESycxLuREMIv51uhRANCAAQYCH0adW/OmYhC5pouBgbkmzRCTaqy
bbZ6EVBpK4d72TbAxxongkh++VXmJ3rVb1nnitVwdvyd955k7oG/M8e8
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmjCCAUGgAwIBAgIUd7qH9UEQYmAyzFPsRWDCv83nCecwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDAyMjc0MFoYDzIxMjYxMTA2
MDIyNzQwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQYCH0adW/OmYhC5pouBgbkmzRCTaqybbZ6EVBpK4d72TbAxxongkh+
+VXmJ3rVb1nnitVwdvyd955k7oG/M8e8o28wbTAdBgNVHQ4EFgQUpn2Fa/37rzPm
elw19W5bIuwa2SEwHwYDVR0jBBgwFoAUpn2Fa/37rzPmelw19W5bIuwa2SEwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDRwAwRAIgN+ZDUeG9C47IqFDye1Ph+EJCpDTPRHUZWHgKOXWh08ACIFip
Y55LXUx4X2gbmltw+1uCTDOS0wvY30fzDdG2XLOS
-----END CERTIFICATE-----
"""


def self_signed_server() -> ssl.SSLContext:
    """Return what a server needs to speak TLS with that certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "both.pem"
        file.write_text(_PEM)
        context.load_cert_chain(file)
    return context


def write_self_signed(folder: Path) -> tuple[Path, Path]:
    """Return the paths of that certificate and of its key, written into `folder`."""
    key, certificate = _PEM.split("-----BEGIN CERTIFICATE-----")
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_text(f"-----BEGIN CERTIFICATE-----{certificate}", encoding="utf-8")
    paths[1].write_text(key, encoding="utf-8")
    return paths
