"""The token of --http: its file, and how requests present it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from muster.coordinator.security.http_token import Token, TokenError


def basic(text: bytes) -> str:
    return f"Basic {base64.b64encode(text).decode()}"


@pytest.mark.parametrize("text", [b"sesame", b"sesame\n", b"sesame\r\n"])
def test_a_file_has_one_line(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(text)
    token = Token.read(str(path))
    assert token.authorization == "Bearer sesame"
    assert token.why_not(token.authorization) is None
    assert "sesame" not in repr(token)


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        (b"", "empty"),
        (b"a b", "one line of visible ASCII"),
        (b"a\n", "one line of visible ASCII"),
        (b"a\0", "one line of visible ASCII"),
        (b"\xff", "one line of visible ASCII"),
        (b"x" * 4_097, "longer than 4096 bytes"),
    ],
)
def test_what_is_no_token(secret: bytes, why: str) -> None:
    with pytest.raises(TokenError, match=why) as raised:
        Token(secret)
    assert "xx" not in str(raised.value)
    assert Token(b"x" * 4_096)


def test_how_it_is_shown() -> None:
    token = Token(b"a:b")
    for shown in ("Bearer a:b", "bearer a:b", "BEARER   a:b ", basic(b"me:a:b"), basic(b":a:b")):
        assert token.why_not(shown) is None, shown
    for shown, why in (
        ("", "neither Bearer nor Basic"),
        ("a:b", "neither Bearer nor Basic"),
        ("Digest a:b", "neither Bearer nor Basic"),
        ("Bearer", "wrong token, as Bearer"),
        ("Bearer a:b a:b", "wrong token, as Bearer"),
        ("Bearer \udcff", "wrong token, as Bearer"),
        ("Basic a:b", "Basic without base64"),
        ("Basic \udcff", "Basic without base64"),
        (basic(b"a:b"), "wrong token, as Basic"),
        (basic(b"\xff:\xff"), "wrong token, as Basic"),
    ):
        assert (token.why_not(shown) or "").endswith(why), shown
