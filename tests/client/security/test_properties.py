"""Files like client.properties: how they are read, and what they mean to this client."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from muster.client import ClientCredentials
from muster.client.security.jaas import parse_jaas
from muster.client.security.properties import ClientProperties, client_properties, read_properties
from muster.client.security.properties_file import parse
from muster.client.security.settings import SecuritySettings
from tests.support.certificates import Authority

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
        (r"a=\ud83d\ude00\ufeff😀", {"a": "😀\ufeff😀"}),
        ("a=\\", {"a": ""}),
        ("\ufeffa=b\nc=\ufeff", {"a": "b", "c": "\ufeff"}),
        ("\ufeff# one\na=b", {"a": "b"}),
        ("a=1\rb=2\r\nc=3\\\r\n  4\r\n", {"a": "1", "b": "2", "c": "34"}),
        (
            "a=b\x0bc\x0cd\x1c\x1d\x1ee\x85f\u2028g\u2029h",
            {"a": "b\x0bc\x0cd\x1c\x1d\x1ee\x85f\u2028g\u2029h"},
        ),
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
        (
            r'M required p="a\nb\61c\t\b\f\r\v\a\q\400\377x\08\1234";',
            "M",
            {"p": "a\nb1c\t\b\f\r\v\aq 0\xffx\x008S4"},
        ),
        ("/**/ M // one\nrequired /* ; \n * */ p='//'/* two */; // three", "M", {"p": "//"}),
        ("M required p=a//b;", "M", {"p": "a//b"}),
    ],
)
def test_jaas_configs(jaas: str, module: str, options: dict[str, str]) -> None:
    """As Java reads them, which takes less without quotes."""
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
            "it takes PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule",
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


def test_blanks_around_a_value_are_dropped_as_java_does(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(
        "bootstrap.servers=kafka:9093 \n"
        "security.protocol=SASL_SSL \t\n"
        "sasl.mechanism=SCRAM-SHA-512\\n\n"
        f'sasl.jaas.config={_SCRAM} required username="alice" password=" secret ";  \n'
        "ssl.truststore.type=PEM \n"
        "ssl.truststore.location=/etc/kafka/ca.pem \n"
        "ssl.key.password=\\ open sesame\\u00a0 \n"
        "client.id=  \n"
    )
    found = read_properties(path)
    assert (found.bootstrap_servers, found.client_id) == ("kafka:9093", None)
    assert found.security == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": " secret ",
        "ssl_cafile": "/etc/kafka/ca.pem",
        "ssl_password": "open sesame\u00a0",
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
        (
            {"ssl.truststore.certificates": "x", "ssl.truststore.type": "JKS"},
            "ssl.truststore.certificates takes ssl.truststore.type=PEM, not JKS",
        ),
        (
            {
                "ssl.truststore.certificates": "x",
                "ssl.truststore.location": "x",
                "ssl.truststore.type": "PEM",
            },
            "is given with ssl.truststore.location: leave one out",
        ),
        (
            {"ssl.keystore.key": "x", "ssl.keystore.type": "PEM"},
            "ssl.keystore.key is given without ssl.keystore.certificate.chain",
        ),
        (
            {"ssl.keystore.location": "x", "ssl.keystore.type": "PEM", "ssl.keystore.password": "x"},
            "that of a private key is ssl.key.password",
        ),
        ({"sasl.login.callback.handler.class": "x.Y"}, "it is a Java class"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "it takes https or nothing"),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{_SCRAM} required username="a" password="b";'},
            "ScramLoginModule, which is not for sasl.mechanism=PLAIN",
        ),
        ({"client.id": "\ud800"}, "^client.id='.ud800': it takes Unicode text of at most 32767 bytes"),
    ],
)
def test_what_cannot_be_used(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        client_properties(given)


def test_a_byte_order_mark_hides_no_property(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=kafka:9092\n", encoding="utf-8-sig")
    assert read_properties(path).bootstrap_servers == "kafka:9092"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sasl.password=Hunter2\\user", "malformed \\u escape in the value of 'sasl.password'"),
        ("ssl.key.password: Hunter2\\u12", "malformed \\u escape in the value of 'ssl.key.password'"),
        ("Hunter2\\user", "malformed \\u escape in the name of a property"),
        ("sasl.password=Hunter2\\ud83d", "incomplete character in the value of 'sasl.password'"),
        ("sasl.password=\\ude00Hunter2", "incomplete character in the value of 'sasl.password'"),
    ],
)
def test_a_malformed_escape_shows_no_password(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(f"# mine\n{line}\n")
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        read_properties(path)
    assert "Hunter2" not in str(raised.value)


def test_what_is_wrong_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("ssl.truststore.location=ca.jks")
    with pytest.raises(ValueError, match=r"client\.properties: ssl\.truststore\.location"):
        read_properties(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not a file of properties"):
        read_properties(path)


_URL = "sasl.oauthbearer.token.endpoint.url"
_ID = "sasl.oauthbearer.client.credentials.client.id"
_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_BY_TOKEN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
    _URL: "https://issuer/token",
}


@pytest.mark.parametrize(
    "given",
    [
        {_ID: "billing", _SECRET: "hush", "sasl.oauthbearer.scope": "kafka"},
        {
            "sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required clientId=billing "
            'clientSecret="hush" scope="kafka" extension_logicalCluster=lkc;'
        },
        {
            # librdkafka's properties, which are Java's except for three names.
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "billing",
            "sasl.oauthbearer.client.secret": "hush",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc",
        },
    ],
)
def test_tokens_from_an_issuer(given: dict[str, str]) -> None:
    found = client_properties(_BY_TOKEN | given)
    provider = found.security["sasl_oauth_token_provider"]
    assert isinstance(provider, ClientCredentials)
    assert repr(provider) == "<ClientCredentials billing at https://issuer/token>"
    assert provider._body == "grant_type=client_credentials&scope=kafka"
    assert dict(provider.extensions) == ({"logicalCluster": "lkc"} if len(given) != 3 else {})
    assert "hush" not in repr(found) + repr(found.settings())


def test_properties_go_before_options_of_jaas() -> None:
    jaas = f"{_OAUTH}.OAuthBearerLoginModule required clientId=old clientSecret=old;"
    found = client_properties(_BY_TOKEN | {"sasl.jaas.config": jaas, _ID: "new"})
    assert "new at" in repr(found.security["sasl_oauth_token_provider"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_token_in_a_file(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a token"
    path.write_text("a.b.c\n", encoding=encoding)
    provider = client_properties(_BY_TOKEN | {_URL: path.as_uri()}).security["sasl_oauth_token_provider"]
    assert provider is not None
    assert provider() == "a.b.c"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, f"{_URL} requires {_ID}, or clientId in sasl.jaas.config"),
        ({_ID: "x"}, f"requires {_SECRET}, or clientSecret"),
        ({_URL: ""}, f"sasl.mechanism=OAUTHBEARER requires {_URL}"),
        ({_ID: "x", _SECRET: "x", _URL: "ldap://issuer"}, f"{_URL}='ldap://issuer': it takes https://"),
        ({_ID: "x", _SECRET: "x", _URL: "https://me:hush@issuer"}, f"{_URL} has a user in it"),
        ({"sasl.login.callback.handler.class": "x.Y"}, "x.Y: it is a Java class"),
        ({"sasl.client.callback.handler.class": "x.Y"}, "x.Y: it is a Java class"),
        ({"sasl.oauthbearer.jwt.retriever.class": "x.Y"}, "with an id and a secret only"),
        ({"sasl.oauthbearer.assertion.file": "x"}, "with an id and a secret only"),
        ({"sasl.oauthbearer.method": "default"}, "sasl.oauthbearer.method=default: it takes oidc"),
        ({_ID: "x", _SECRET: "x", "https.ca.location": "/nowhere"}, "https.ca.location: ssl_cafile="),
        ({_ID: "x", _SECRET: "x", "sasl.login.read.timeout.ms": "soon"}, "it takes milliseconds"),
        ({_ID: "x", _SECRET: "x", "sasl.oauthbearer.extensions": "auth=x"}, "extension 'auth'"),
    ],
)
def test_tokens_that_there_is_no_way_to(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        client_properties(_BY_TOKEN | given)
    assert "hush" not in str(raised.value)


def test_pem_within_a_file(tmp_path: Path) -> None:
    """As in Kafka's documentation: on continued lines, which Java joins into one."""
    authority = Authority(tmp_path)
    client = authority.issue("client", password="open sesame")
    lines = {
        "ssl.truststore.certificates": authority.certificate,
        "ssl.keystore.certificate.chain": client.certificate,
        "ssl.keystore.key": client.key,
    }
    path = tmp_path / "client.properties"
    path.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        "ssl.key.password=open sesame\n"
        + "".join(f"{name}={' '.join(pem.read_text().split(chr(10)))}\n" for name, pem in lines.items())
    )
    found = read_properties(path)
    security = found.settings().security
    assert security is not None
    assert security.context is not None
    assert security.context.get_ca_certs()
    assert "PRIVATE KEY" not in repr(found) + repr(found.settings())


def test_what_is_wrong_is_said_of_properties() -> None:
    with pytest.raises(ValueError, match=r"^ssl\.truststore\.location='/nowhere': no such file"):
        client_properties(
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/nowhere",
            }
        ).settings()
    with pytest.raises(ValueError, match=r"^security\.protocol='SASL_SSL' requires sasl\.mechanism"):
        client_properties({"security.protocol": "sasl_ssl"}).settings()


def test_every_setting_has_the_name_of_a_property() -> None:
    made = ClientProperties()
    for each in fields(SecuritySettings):
        if each.init and each.name != "ssl_context":
            assert "_" not in made.in_properties(f"set {each.name} to x"), each.name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "ssl.truststore.location names the CAs"),
        ({"ssl.ca.location": "x"}, "ssl.ca.location names the CAs"),
        ({"ssl.ca.pem": "x"}, "ssl.ca.pem names the CAs"),
        ({"ssl.truststore.certificates": "x"}, "ssl.truststore.certificates names the CAs"),
    ],
)
def test_what_is_said_names_the_property_that_was_given(given: dict[str, str], said: str) -> None:
    assert client_properties(given).in_properties("ssl_cafile names the CAs") == said
