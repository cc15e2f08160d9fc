"""Files of client.properties: how they are read, and what they say to this client."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.client.security.properties import client_properties, parse, parse_jaas, read_properties
from muster.client.security.settings import SecuritySettings

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", {"a": "b"}),
        ("  a = b  ", {"a": "b  "}),
        ("a:b\nc d\ne", {"a": "b", "c": "d", "e": ""}),
        ("# one\n! two\n\n a=b # no comment", {"a": "b # no comment"}),
        ("a=b\\\n    c\\\n  d", {"a": "bcd"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        (r"a\=b\:c=d", {"a=b:c": "d"}),
        (r"a=\u00f6\t\q", {"a": "ö\tq"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=\\", {"a": ""}),
    ],
)
def test_files_are_read_as_java_does(text: str, found: dict[str, str]) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    ("jaas", "module", "options"),
    [
        (
            f'{_PLAIN} required username="alice" password="a b;=";',
            _PLAIN,
            {"username": "alice", "password": "a b;="},
        ),
        (
            f"{_SCRAM}  required\n username='a\"b'\n password=plain ;",
            _SCRAM,
            {"username": 'a"b', "password": "plain"},
        ),
        (r'M required p="a\"\\b";', "M", {"p": 'a"\\b'}),
        ("M required;", "M", {}),
    ],
)
def test_jaas_configs(jaas: str, module: str, options: dict[str, str]) -> None:
    assert parse_jaas(jaas) == (module, options)


@pytest.mark.parametrize(
    ("jaas", "said"),
    [
        ("", "it takes a login module"),
        (f"{_PLAIN} needed username=a;", "it takes a login module"),
        (f'{_PLAIN} required username="a"', "no semicolon"),
        (f'{_PLAIN} required username="a;', "a quote is not closed"),
        (f"{_PLAIN} required username;", "options are written"),
        (f'{_PLAIN} required username="a";', "has no password"),
        (
            "com.sun.security.auth.module.Krb5LoginModule required;",
            "it takes PlainLoginModule or ScramLoginModule",
        ),
    ],
)
def test_jaas_configs_that_cannot_be_used(jaas: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        client_properties({"sasl.jaas.config": jaas})
    assert str(raised.value).startswith("sasl.jaas.config")


def test_a_file_of_a_java_client(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=kafka:9093\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={_SCRAM} required \\\n  username="alice" \\\n  password="s\\u00e9cret";\n'
        "ssl.truststore.type=PEM\n"
        "ssl.truststore.location=/etc/kafka/ca.pem\n"
        "ssl.endpoint.identification.algorithm=\n"
        "acks=all\n"
    )
    found = read_properties(path)
    assert found.bootstrap_servers == "kafka:9093"
    assert found.security == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "sécret",
        "ssl_cafile": "/etc/kafka/ca.pem",
        "ssl_check_hostname": False,
    }


def test_librdkafkas_names() -> None:
    found = client_properties(
        {
            "security.protocol": "sasl_plaintext",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
        }
    )
    settings = SecuritySettings(**found.security)
    assert settings.security is not None
    assert settings.security.protocol == "SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"ssl.truststore.location": "ca.jks"},
            "ssl.truststore.location=ca.jks is of ssl.truststore.type JKS",
        ),
        ({"ssl.keystore.location": "me.p12", "ssl.keystore.type": "PKCS12"}, "ssl.keystore.type=PEM"),
        ({"ssl.truststore.certificates": "-----BEGIN"}, "write them to a file"),
        ({"sasl.login.callback.handler.class": "x.Y"}, "is a Java class"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "it takes https or nothing"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{_SCRAM} required username="a" password="b";'},
            "ScramLoginModule, which is not for sasl.mechanism=PLAIN",
        ),
    ],
)
def test_what_cannot_be_used(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        client_properties(given)


def test_what_is_wrong_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("ssl.truststore.location=ca.jks")
    with pytest.raises(ValueError, match=r"client\.properties: ssl\.truststore\.location"):
        read_properties(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a file of properties"):
        read_properties(path)
