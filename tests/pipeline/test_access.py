"""TLS and SASL options: how they are read, the errors for wrong ones, and what is sent to executors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import pytest

from muster.client.security.mechanisms import Scram
from muster.pipeline.access import NOTHING_TO_SHOW, Access, with_access
from muster.pipeline.errors import OptionError
from muster.pipeline.options import source_options
from muster.pipeline.writer_options import WriterOptions
from tests.support.certificates import Authority

SERVERS = {"kafka.bootstrap.servers": "localhost:9093"}
ORDERS = {**SERVERS, "subscribe": "orders"}
SECRET = "hunter2"
SCRAM = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="alice" password="{SECRET}";',
}


def test_without_them_everybody_is_let_in() -> None:
    options = source_options(ORDERS, streaming=True)
    assert options.access == NOTHING_TO_SHOW
    assert options.access.security is None


@pytest.mark.parametrize("case", [str.lower, str.upper, str])
def test_names_are_taken_in_any_case(case: type[str]) -> None:
    given = {case(name): value for name, value in SCRAM.items()}
    access = source_options({**ORDERS, **given}, streaming=False).access
    assert access.security is not None
    assert isinstance(access.security.mechanism, Scram)
    assert WriterOptions.of({**SERVERS, **given}).access == access


def test_they_travel_and_show_no_secret(tmp_path: Path) -> None:
    ca = Authority(tmp_path).certificate
    tls = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(ca)}
    given = {**SCRAM, **tls, "kafka.security.protocol": "SASL_SSL"}
    for options in (
        source_options({**ORDERS, **given}, streaming=True),
        WriterOptions.of({**SERVERS, **given}),
    ):
        assert SECRET not in repr(options)
        there = pickle.loads(pickle.dumps(options)).access
        assert there == options.access
        assert there.security.protocol == "SASL_SSL"
        # The tasks of a process share its tokens and contexts.
        assert there.security is options.access.security


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kafka.security.protocol": "TLS"}, "option kafka.security.protocol='TLS': it takes"),
        ({"kafka.securty.protocol": "SSL"}, "option kafka.securty.protocol: there is none of that name"),
        (
            {"kafka.security.protocl": "SSL"},
            "option kafka.security.protocl: .* did you mean kafka.security.protocol?",
        ),
        ({"kafka.ssl.trustore.location": "x"}, "did you mean kafka.ssl.truststore.location?"),
        (
            {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/none.pem"},
            "kafka.ssl.truststore.location",
        ),
        ({**SCRAM, "kafka.sasl.jaas.config": "x"}, "kafka.sasl.jaas.config"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism"),
        (
            {**SCRAM, "kafka.sasl.mechanism": "GSSAPI"},
            "kafka.sasl.mechanism",
        ),
    ],
)
def test_what_is_wrong_is_told_by_the_name_of_the_option(given: Mapping[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said) as reading:
        source_options({**ORDERS, **given}, streaming=True)
    assert SECRET not in str(reading.value)


def test_a_writer_says_so_too() -> None:
    with pytest.raises(OptionError, match=r"option kafka\.security\.protocol='TLS'"):
        WriterOptions.of({**SERVERS, "kafka.security.protocol": "TLS"})
    with pytest.raises(OptionError, match=r"did you mean kafka\.sasl\.mechanism"):
        WriterOptions.of({**SERVERS, "kafka.sasl.mechansm": "PLAIN"})


def test_a_file_of_properties_for_commands(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=elsewhere:9092\n"
        + "".join(f"{name.removeprefix('kafka.')}={value}\n" for name, value in SCRAM.items())
    )
    options = dict(with_access([("failOnDataLoss", "false")], str(path)))
    assert options == {**SCRAM, "failOnDataLoss": "false"}
    nearer = dict(with_access([("kafka.sasl.mechanism", "SCRAM-SHA-256")], str(path)))
    assert nearer["kafka.sasl.mechanism"] == "SCRAM-SHA-256"
    assert with_access([], None) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file or directory"),
        (b"\xff\xfe", "not a file of properties"),
        (b"security.protocol=TLS\n", "TLS"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "client.properties"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError, match=said) as raised:
        Access.from_file(str(path))
    assert str(path) in str(raised.value)


def test_what_a_client_says_is_said_of_options() -> None:
    said = "its certificate is not accepted (ssl_cafile names the CAs that are trusted)"
    assert NOTHING_TO_SHOW.in_options(said) == said
    access = Access.of({"kafka.security.protocol": "SSL"})
    assert "(kafka.ssl.truststore.location names the CAs" in access.in_options(said)
    assert access.in_options("set security_protocol to SSL") == "set kafka.security.protocol to SSL"
