"""Settings from a client.properties file, as Kafka's own tools take it with --command-config, or with
librdkafka's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from muster.client.security.settings import SecurityOptions

_DIRECT: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
_JAVA_STORES: Final = ("truststore", "keystore")
_SAID_BY_CODE: Final = {
    "sasl.login.callback.handler.class": "is a Java class",
    "sasl.client.callback.handler.class": "is a Java class",
    "ssl.truststore.certificates": "has certificates in it: write them to a file (ssl.truststore.location)",
    "ssl.keystore.key": "has a key in it: write it to a file (ssl.keystore.location)",
    "ssl.keystore.certificate.chain": "has certificates in it: write them to a file (ssl.keystore.location)",
}
_LOGIN_MODULES: Final = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_JAAS_TOKEN: Final = re.compile(r"""\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([=;])|([^\s=;"']+))""")


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What such a file says to this client. Everything that is not about security is for other clients, but
    for the two below."""

    security: SecurityOptions = field(default_factory=SecurityOptions)
    bootstrap_servers: str | None = None
    client_id: str | None = None


def read_properties(path: str | Path) -> ClientProperties:
    """The settings in a file. Raises ValueError that names the file, and the property that cannot be used;
    OSError."""
    try:
        return client_properties(parse(Path(path).read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a file of properties (it is no UTF-8 text)") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def client_properties(given: Mapping[str, str]) -> ClientProperties:
    """What properties by Kafka's names say. Raises ValueError that names the property."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in _DIRECT:
            options[_DIRECT[name]] = value
        elif name in _SAID_BY_CODE:
            raise ValueError(f"{name} {_SAID_BY_CODE[name]}")
    for store in _JAVA_STORES:
        _require_pem(store, given)
    if "ssl.endpoint.identification.algorithm" in given:
        algorithm = given["ssl.endpoint.identification.algorithm"].lower()
        if algorithm not in ("", "none", "https"):
            raise ValueError(
                f"ssl.endpoint.identification.algorithm={algorithm!r}: it takes https or nothing"
            )
        options["ssl_check_hostname"] = algorithm == "https"
    if "sasl.jaas.config" in given:
        options |= _credentials(given["sasl.jaas.config"], options.get("sasl_mechanism"))
    protocol = options.get("security_protocol")
    if protocol is not None:
        options["security_protocol"] = protocol.upper()  # librdkafka's own spelling is in lower case
    return ClientProperties(
        SecurityOptions(**options),  # type: ignore[typeddict-item]
        given.get("bootstrap.servers") or None,
        given.get("client.id") or None,
    )


def _require_pem(store: str, given: Mapping[str, str]) -> None:
    location, kind = given.get(f"ssl.{store}.location"), given.get(f"ssl.{store}.type", "JKS").upper()
    if location is not None and kind != "PEM":
        raise ValueError(
            f"ssl.{store}.location={location} is of ssl.{store}.type {kind}, which only Java reads: convert "
            f"it to PEM (keytool -exportcert -rfc, or openssl pkcs12), and set ssl.{store}.type=PEM"
        )


def _credentials(jaas: str, mechanism: str | None) -> dict[str, str]:
    """User and password from a sasl.jaas.config."""
    module, options = parse_jaas(jaas)
    name = module.rpartition(".")[2]
    if name not in _LOGIN_MODULES:
        raise ValueError(
            f"sasl.jaas.config names {module}; it takes {' or '.join(_LOGIN_MODULES)}, with username and "
            "password"
        )
    if mechanism is not None and mechanism not in _LOGIN_MODULES[name]:
        raise ValueError(f"sasl.jaas.config names {name}, which is not for sasl.mechanism={mechanism}")
    missing = [each for each in ("username", "password") if each not in options]
    if missing:
        raise ValueError(f"sasl.jaas.config has no {missing[0]}")
    found = {"sasl_plain_username": options["username"], "sasl_plain_password": options["password"]}
    return (
        found if mechanism is not None or name != "PlainLoginModule" else found | {"sasl_mechanism": "PLAIN"}
    )


def parse_jaas(text: str) -> tuple[str, dict[str, str]]:
    """Login module and options of `Module required name="value" ...;`. Raises ValueError."""
    tokens = list(_jaas_tokens(text))
    if len(tokens) < 3 or tokens[1][1].lower() not in ("required", "requisite", "sufficient", "optional"):
        raise ValueError("sasl.jaas.config: it takes a login module, `required`, options, and a semicolon")
    if tokens[-1] != ("mark", ";"):
        raise ValueError("sasl.jaas.config: there is no semicolon at its end")
    options: dict[str, str] = {}
    rest = tokens[2:-1]
    while rest:
        if len(rest) < 3 or rest[1] != ("mark", "=") or rest[0][0] != "word" or rest[2][0] == "mark":
            raise ValueError('sasl.jaas.config: options are written name="value"')
        options[rest[0][1]] = rest[2][1]
        rest = rest[3:]
    return tokens[0][1], options


def _jaas_tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while text[at:].strip():
        found = _JAAS_TOKEN.match(text, at)
        if found is None:
            raise ValueError("sasl.jaas.config: a quote is not closed")
        at = found.end()
        double, single, mark, word = found.groups()
        quoted = double if double is not None else single
        if quoted is not None:
            yield "text", re.sub(r"\\(.)", r"\1", quoted)
        elif mark is not None:
            yield "mark", mark
        else:
            yield "word", word


def parse(text: str) -> dict[str, str]:
    """The properties of a file, as Java reads it but for UTF-8: comments, escapes, continued lines. A later
    one of the same name wins. Raises ValueError for an escape that is none."""
    found: dict[str, str] = {}
    for line in _lines(text):
        name, value = _split(line)
        found[_unescaped(name)] = _unescaped(value)
    return found


def _lines(text: str) -> Iterator[str]:
    """Logical lines: without comments and blank ones, continued ones in one piece."""
    whole = ""
    for each in text.splitlines():
        line = each.lstrip(" \t\f")
        if not whole and (not line or line[0] in "#!"):
            continue
        whole += line
        backslashes = len(whole) - len(whole.rstrip("\\"))
        if backslashes % 2:
            whole = whole[:-1]
            continue
        yield whole
        whole = ""
    if whole:
        yield whole


def _split(line: str) -> tuple[str, str]:
    """A name ends at the first separator that is not escaped: =, : or white space."""
    at = 0
    while at < len(line) and line[at] not in "=: \t\f":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:at], rest


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        digits, other = found.groups()
        if digits is not None:
            return chr(int(digits, 16))
        if other == "u":
            raise ValueError(rf"malformed \u escape in {text.partition('=')[0][:40]!r}; it takes four digits")
        return _ESCAPES.get(other, other)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", character, text)
