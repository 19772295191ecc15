"""Certificates are read, tried, and exchanged; what is wrong with them is said with the file's name."""

from __future__ import annotations

import logging
import os
import shutil
import ssl
import threading
from pathlib import Path

import pytest

from router.entrances import read_tls
from router.settings import RouterSettings
from router.tls import TlsFiles, TlsProblem
from tests.support.certificates import Certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_sound_certificate_is_taken_without_a_word(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    files = TlsFiles(*made.issue())
    assert files.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert files.context.verify_mode is ssl.CERT_NONE
    assert caplog.records == []


def test_key_may_stand_in_the_file_of_the_certificate(made: Certificates, tmp_path: Path) -> None:
    certificate, key = made.issue()
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    assert TlsFiles(both).files == (both,)


def test_missing_file_is_named(made: Certificates, tmp_path: Path) -> None:
    with pytest.raises(TlsProblem, match=r"gone\.pem cannot be read \(No such file.*CORRAL_TLS_CERT"):
        TlsFiles(tmp_path / "gone.pem", made.issue()[1])


def test_key_of_another_certificate_is_refused_with_both_names(made: Certificates) -> None:
    with pytest.raises(TlsProblem, match=r"other\.key is not that of the first certificate in .*server\.pem"):
        TlsFiles(made.issue()[0], made.issue("other")[1])


def test_missing_key_is_asked_for(made: Certificates) -> None:
    with pytest.raises(TlsProblem, match=r"server\.pem does not hold both.*CORRAL_TLS_KEY"):
        TlsFiles(made.issue()[0])


def test_file_that_holds_no_certificate_is_named(made: Certificates, tmp_path: Path) -> None:
    words = tmp_path / "words.pem"
    words.write_text("good morning\n")
    certificate, key = made.issue()
    with pytest.raises(TlsProblem, match=r"words\.pem \(CORRAL_TLS_CERT\) holds no certificate"):
        TlsFiles(words, key)
    with pytest.raises(TlsProblem, match=r"words\.pem \(CORRAL_TLS_KEY\) holds no private key"):
        TlsFiles(certificate, words)
    with pytest.raises(TlsProblem, match=r"words\.pem \(CORRAL_TLS_CLIENT_CA\) holds no certificate"):
        TlsFiles(certificate, key, words)


def test_key_with_a_password_is_refused_rather_than_asked_for(made: Certificates, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    certificate, key = made.issue()
    locked = tmp_path / "locked.key"
    plain = serialization.load_pem_private_key(key.read_bytes(), None)
    form, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    locked.write_bytes(plain.private_bytes(encoding, form, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(TlsProblem, match=r"locked\.key is protected by a password"):
        TlsFiles(certificate, locked)


def test_expired_certificate_is_served_with_a_warning(made: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    TlsFiles(*made.issue("old", is_expired=True))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "old.pem has expired" in caplog.text


async def test_new_files_are_taken_up_and_broken_ones_are_not(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = (shutil.copy(path, tmp_path) for path in made.issue("first"))
    files = TlsFiles(Path(certificate), Path(key))
    first = files.context
    shutil.copy(made.issue("second")[0], certificate)
    await files.take_edits()
    assert files.context is first, "the key is still that of the first one"
    assert "goes on with the certificate that it had" in caplog.text
    shutil.copy(made.folder / "second.key", key)
    await files.take_edits()
    assert files.context is not first


def test_authority_of_clients_makes_their_certificates_a_must(made: Certificates) -> None:
    files = TlsFiles(*made.issue(), made.ca)
    assert files.context.verify_mode is ssl.CERT_REQUIRED


def test_key_without_a_certificate_is_a_mistake(made: Certificates) -> None:
    assert read_tls(RouterSettings()) is None
    with pytest.raises(TlsProblem, match="CORRAL_TLS_KEY is set and CORRAL_TLS_CERT is not"):
        read_tls(RouterSettings(tls_key=made.issue()[1]))


def test_a_pipe_in_the_place_of_a_certificate_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)
    with pytest.raises(TlsProblem, match=r"pipe\.pem is no regular file"):
        TlsFiles(pipe)


async def test_files_are_read_again_in_a_thread(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    files = TlsFiles(*made.issue())
    threads: list[int] = []

    def note(_: object) -> dict[Path, str]:
        threads.append(threading.get_ident())
        return {}

    monkeypatch.setattr("router.tls.look", note)
    await files.take_edits()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
