"""PEM text in settings: how it is tidied, and that its private key is left nowhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from muster.client.security import pem
from muster.client.security.settings import SecuritySettings
from tests.support.certificates import Authority


def test_blocks_on_one_line() -> None:
    packed = "A" * 70
    text = f"-----BEGIN X-----{packed}-----END X----- and -----BEGIN Y Z----- BB BB -----END Y Z-----"
    assert pem.tidied(text) == (
        f"-----BEGIN X-----\n{'A' * 64}\n{'A' * 6}\n-----END X-----\n"
        "-----BEGIN Y Z-----\nBBBB\n-----END Y Z-----\n"
    )


def test_what_is_no_pem_is_not_shown() -> None:
    with pytest.raises(ValueError, match="no PEM in it") as raised:
        SecuritySettings(security_protocol="SSL", ssl_certdata="x", ssl_keydata="hush")
    assert str(raised.value).startswith("ssl_certdata: ")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("password", [None, "open sesame"])
def test_a_certificate_and_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool, password: str | None
) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("client", password=password)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    if not in_memory:
        monkeypatch.setattr(pem, "_in_memory", lambda data: None)
    descriptors = set(os.listdir("/proc/self/fd"))
    settings = SecuritySettings(
        security_protocol="SSL",
        ssl_cadata=authority.certificate.read_text(),
        ssl_certdata=client.certificate.read_text(),
        ssl_keydata=client.key.read_text(),
        ssl_password=password,
    )
    assert settings.security is not None
    assert list(scratch.iterdir()) == []
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    with pytest.raises(ValueError, match=r"^ssl_certdata, ssl_keydata: the private key is not that of"):
        SecuritySettings(
            security_protocol="SSL",
            ssl_certdata=client.certificate.read_text(),
            ssl_keydata=authority.issue("other").key.read_text(),
        )
    assert list(scratch.iterdir()) == []


def test_a_file_of_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(pem, "_in_memory", lambda data: None)
    with pem.path_of("hush") as path:
        assert Path(path).read_text() == "hush"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert list(tmp_path.iterdir()) == []


def test_text_and_file_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ssl_cafile is given with ssl_cadata: leave one out"):
        SecuritySettings(security_protocol="SSL", ssl_cafile="x", ssl_cadata="x")
