"""What commands report when a broker does not let them in: they name the properties as the user wrote
them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from muster.coordinator import cli
from muster.coordinator.testing import Broker
from tests.cli.running import DEADLINE_S, Muster
from tests.cli.test_running import server
from tests.support.certificates import Authority

_SCRAM: Final = (
    "sasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule "
    'required username="muster" password="x";\n'
)
_PEM: Final = "ssl.truststore.type=PEM\n"

Properties = Callable[[str, Authority], str]


def _one_line(pem: str) -> str:
    return pem.replace("\n", "\\n\\\n")


def _ca(broker: Broker) -> str:
    return str(broker.client_settings("muster")["ssl_cafile"])


@pytest.mark.parametrize(
    ("protocol", "properties", "said"),
    [
        (
            "SASL_SSL",
            lambda ca, other: f"security.protocol=SSL\nssl.truststore.location={other.certificate}\n{_PEM}",
            "(ssl.truststore.location names the CAs that are trusted)",
        ),
        (
            "SASL_SSL",
            lambda ca, other: f"security.protocol=ssl\nssl.ca.location={other.certificate}\n",
            "(ssl.ca.location names the CAs that are trusted)",
        ),
        (
            "SASL_SSL",
            lambda ca, other: (
                "security.protocol=SSL\nssl.truststore.certificates="
                f"{_one_line(other.certificate.read_text())}\n{_PEM}"
            ),
            "(ssl.truststore.certificates names the CAs that are trusted)",
        ),
        (
            "SSL",
            lambda ca, other: f"security.protocol=SSL\nssl.truststore.location={ca}\n{_PEM}",
            "it asks for a client certificate: set ssl.keystore.type=PEM and ssl.keystore.location (a file "
            "with certificate and key)",
        ),
        (
            "SASL_PLAINTEXT",
            lambda ca, other: "security.protocol=SSL\n",
            "it may be a listener for PLAINTEXT or SASL_PLAINTEXT (security.protocol)",
        ),
        (
            "SASL_PLAINTEXT",
            lambda ca, other: (
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
                f"sasl.oauthbearer.token.endpoint.url={other.certificate.as_uri()}\n"
            ),
            "sasl.",
        ),
        (
            "PLAINTEXT",
            lambda ca, other: f"security.protocol=SASL_PLAINTEXT\n{_SCRAM}",
            "security.protocol",
        ),
    ],
)
def test_properties_are_named_as_they_were_given(
    protocol: str, properties: Properties, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    with Broker(security=protocol) as broker:
        ca = _ca(broker) if "SSL" in protocol else ""
        file.write_text(properties(ca, Authority(tmp_path, "other")))
        for command in (["topics", "list"], ["consume", "t"], ["produce", "t", "--file", str(file)]):
            heard = Muster(broker.bootstrap, capfd).refused(*command, "--command-config", str(file))
            (line,) = heard.splitlines()
            assert said in line
            assert not re.search(r"\b(ssl|sasl|security)_[a-z_]+", line), line


def test_the_advice_for_a_listener_that_asks_for_a_certificate_is_enough(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, store = tmp_path / "client.properties", tmp_path / "client.pem"
    with Broker(security="SSL") as broker:
        given = broker.client_settings("muster")
        muster = Muster(broker.bootstrap, capfd)
        store.write_text("".join(Path(given[f"ssl_{each}file"]).read_text() for each in ("cert", "key")))
        file.write_text(f"security.protocol=SSL\nssl.truststore.location={given['ssl_cafile']}\n{_PEM}")
        line = muster.refused("topics", "list", "--command-config", str(file))
        found = re.search(r": set ([\w.=]+) and ([\w.]+) \(a file with certificate and key\)$", line.rstrip())
        assert found, line
        with file.open("a") as more:
            more.write(f"{found[1]}\n{found[2]}={store}\n")
        muster.done("topics", "list", "--command-config", str(file))


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def test_without_properties_a_secured_listener_is_told_from_no_broker(
    protocol: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Broker(security=protocol) as broker:
        began = time.monotonic()
        heard = Muster(broker.bootstrap, capfd).refused("topics", "list", "--timeout", "3600")
        assert time.monotonic() - began < DEADLINE_S  # it does not try again
    named = "SASL" if protocol == "SASL_PLAINTEXT" else "TLS or SASL"
    assert f"it may be a listener for {named} (security.protocol)" in heard
    assert "--command-config" in heard


def test_without_properties_it_says_where_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    def alert(connection: socket.socket) -> None:
        """As Java's TLS answers input that is not TLS."""
        connection.recv(1024)
        connection.sendall(bytes((21, 3, 3, 0, 2, 2, 10)))

    with server(alert) as bootstrap:
        line = Muster(bootstrap, capfd).refused("topics", "list")
    assert line.endswith(
        "it is a TLS listener: set security.protocol to SSL or SASL_SSL; properties are in a file, for "
        "--command-config\n"
    )


def test_properties_from_a_variable_are_named_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "client.properties"

    def said(*arguments: str) -> str:
        assert cli.main(["topics", "list", *arguments], {"MUSTER_COMMAND_CONFIG": str(file)}) == 2
        return capsys.readouterr().err.removeprefix("muster topics list: ")

    assert said() == f"MUSTER_COMMAND_CONFIG: {file}: no such file or directory\n"
    assert said("--command-config", f"{file}2").startswith(f"--command-config: {file}2: ")
    file.write_text("bootstrap.servers=nowhere\n")
    assert said().startswith("bootstrap.servers of MUSTER_COMMAND_CONFIG: 'nowhere' is no address")


def test_an_empty_file_name_is_not_as_if_no_file_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script's unset variable must not send a command to another cluster, nor without TLS."""
    for variables in ({}, {"MUSTER_COMMAND_CONFIG": str(tmp_path / "other")}):
        with pytest.raises(SystemExit) as ended:
            cli.main(["topics", "delete", "t", "--command-config", ""], variables)
        assert ended.value.code == 2
        said = "muster topics delete: argument --command-config: '' is not allowed; it takes the path of"
        assert capsys.readouterr().err.startswith(said)
