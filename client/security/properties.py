"""Settings from properties with the names of Kafka's Java clients or of librdkafka, as in a client.properties
file that Kafka's own tools take with --command-config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from muster.client.security.jaas import parse_jaas
from muster.client.security.mechanism import OAUTHBEARER, TokenProvider
from muster.client.security.oauth import TokenFile
from muster.client.security.properties_file import parse
from muster.client.security.settings import SecurityOptions, SecuritySettings
from muster.client.security.tls import client_context
from muster.client.settings import check_text

_DIRECT: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.truststore.certificates": "ssl_cadata",
    "ssl.ca.pem": "ssl_cadata",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.keystore.certificate.chain": "ssl_certdata",
    "ssl.certificate.pem": "ssl_certdata",
    "ssl.key.location": "ssl_keyfile",
    "ssl.keystore.key": "ssl_keydata",
    "ssl.key.pem": "ssl_keydata",
    "ssl.key.password": "ssl_password",
}
"""The setting that takes a property's value unchanged, by property name, Java's before librdkafka's."""

_TEXT_OF: Final = {f"ssl_{what}file": f"ssl_{what}data" for what in ("ca", "cert", "key")}
"""The setting that takes the text, by the setting that takes the file."""

_STORES: Final = {
    "truststore": ("ssl.truststore.certificates",),
    "keystore": ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
}
"""Java's stores, with the properties that hold PEM in place of a file."""

_JAAS: Final = "sasl.jaas.config"
_HANDLER: Final = "sasl.login.callback.handler.class"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_TIMEOUT: Final = "sasl.login.read.timeout.ms"
_CREDENTIALS: Final = {
    "client_id": (
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.id",
        "clientId",
    ),
    "client_secret": (
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
        "clientSecret",
    ),
    "scope": ("sasl.oauthbearer.scope", "scope"),
}
"""What an issuer gets: Java's property, librdkafka's, and the JAAS option, which all others override."""
_EXTENSION: Final = "extension_"

_FOR_OAUTH: Final = (
    _TOKEN_URL,
    *(name for names in _CREDENTIALS.values() for name in names if "." in name),
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.method",
    "https.ca.location",
    "https.ca.pem",
    _TIMEOUT,
    _RETRIEVER,
)
NAMES: Final = (
    *_DIRECT,
    *(f"ssl.{store}.type" for store in _STORES),
    *(f"ssl.{store}.password" for store in _STORES),
    _IDENTIFICATION,
    _JAAS,
    _HANDLER,
    *_FOR_OAUTH,
)
"""Every security property that has an effect here, or is refused for its value."""

_BLANKS: Final = "".join(map(chr, range(0x21)))
"""What Java's String.trim() drops."""

_KAFKA: Final = "org.apache.kafka.common.security."
_LOGIN_MODULES: Final = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": (OAUTHBEARER,),
}
_HANDLERS: Final = (
    f"{_KAFKA}oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_RETRIEVERS: Final = {
    f"{_KAFKA}oauthbearer.{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File")
}


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What such a file means to this client. Apart from security, only the next two properties apply; the
    rest is for other clients."""

    security: SecurityOptions = field(default_factory=SecurityOptions, repr=False)
    bootstrap_servers: str | None = None
    client_id: str | None = None
    told_by: Mapping[str, str] = field(default_factory=dict)
    """The property that each setting comes from."""

    def settings(self) -> SecuritySettings:
        """The TLS and SASL settings. Raises ValueError, naming properties."""
        try:
            return SecuritySettings(**self.security)
        except ValueError as error:
            raise ValueError(self.in_properties(str(error))) from None

    def in_properties(self, text: str) -> str:
        """The text with settings replaced by the properties they come from. Callers that read properties show
        every client error this way, about settings and connections alike."""
        names = {setting: name for name, setting in reversed(_DIRECT.items())}
        names |= {
            "ssl_certfile and ssl_keyfile": (
                "ssl.keystore.type=PEM and ssl.keystore.location (a file with certificate and key)"
            ),
            "ssl_check_hostname": _IDENTIFICATION,
            "ssl_check_hostname=False": f"an empty {_IDENTIFICATION}",
            "sasl_plain_username": f"{_JAAS} with a username",
            "sasl_plain_password": f"{_JAAS} with a password",
            "sasl_oauth_token_provider": _TOKEN_URL,
            **self.told_by,
        }
        for file, text_of in _TEXT_OF.items():
            if text_of in self.told_by and file not in self.told_by:
                names[file] = self.told_by[text_of]
        pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
        return re.sub(rf"\b(?:{pattern})\b", lambda found: names[found[0]], text)


def read_properties(path: str | Path) -> ClientProperties:
    """The settings in a file. Raises ValueError, naming the file and the unusable property, and OSError."""
    try:
        return client_properties(parse(Path(path).read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a file of properties (it is no UTF-8 text)") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def client_properties(given: Mapping[str, str]) -> ClientProperties:
    """The settings from properties with Kafka's names. Blanks around a value are dropped, as in Java. Raises
    ValueError, naming the property."""
    given = {name: value.strip(_BLANKS) for name, value in given.items()}
    options: dict[str, Any] = {}
    told_by: dict[str, str] = {}
    for name, setting in _DIRECT.items():
        if name in given and setting not in options:
            options[setting], told_by[setting] = given[name], name
    for store in _STORES:
        _require_pem(store, given)
    if _IDENTIFICATION in given:
        options["ssl_check_hostname"] = _is_checked(given[_IDENTIFICATION])
    if handler := given.get("sasl.client.callback.handler.class"):
        raise ValueError(f"sasl.client.callback.handler.class={handler}: {_NO_JAVA}")
    module, jaas = parse_jaas(given[_JAAS]) if _JAAS in given else (None, {})
    if module is not None:
        _require_for(module, options)
    if options.get("sasl_mechanism") == OAUTHBEARER:
        options["sasl_oauth_token_provider"] = _token_provider(given, jaas)
    elif given.get(_HANDLER):
        raise ValueError(f"{_HANDLER}={given[_HANDLER]}: {_NO_JAVA}")
    elif module is not None:
        for name in ("username", "password"):
            if name not in jaas:
                raise ValueError(f"{_JAAS} has no {name}")
            options[f"sasl_plain_{name}"] = jaas[name]
            told_by[f"sasl_plain_{name}"] = f"{name} of {_JAAS}"
    check_text("client.id", given.get("client.id"))
    protocol = options.get("security_protocol")
    if protocol is not None:
        options["security_protocol"] = protocol.upper()  # librdkafka spells it in lower case
    return ClientProperties(
        SecurityOptions(**options),  # type: ignore[typeddict-item]
        given.get("bootstrap.servers") or None,
        given.get("client.id") or None,
        told_by,
    )


_NO_JAVA: Final = (
    "it is a Java class, which this client cannot run; for OAUTHBEARER, a Python program takes a function as "
    "sasl_oauth_token_provider"
)


def _is_checked(algorithm: str) -> bool:
    if algorithm.lower() not in ("", "none", "https"):
        raise ValueError(f"{_IDENTIFICATION}={algorithm!r}: it takes https or nothing")
    return algorithm.lower() == "https"


def _require_pem(store: str, given: Mapping[str, str], within: str = "") -> None:
    """Raise ValueError if a store is not PEM, or is given twice. `within` says where it was found."""
    location, type_name = f"ssl.{store}.location", f"ssl.{store}.type"
    kind = given.get(type_name, "JKS" if location in given else "PEM").upper()
    inline = [name for name in _STORES[store] if name in given]
    if kind != "PEM" and location in given:
        raise ValueError(
            f"{within}{location}={given[location]} is of {type_name} {kind}, which only Java reads: convert "
            f"it to PEM (keytool -exportcert -rfc, or openssl pkcs12), and set {type_name}=PEM"
        )
    if kind != "PEM" and inline:
        raise ValueError(f"{within}{inline[0]} takes {type_name}=PEM, not {kind}")
    if location in given and inline:
        raise ValueError(f"{within}{inline[0]} is given with {location}: leave one out")
    if len(inline) == 1 < len(_STORES[store]):
        (missing,) = set(_STORES[store]) - set(inline)
        raise ValueError(f"{within}{inline[0]} is given without {missing}")
    if kind == "PEM" and given.get(f"ssl.{store}.password"):
        hint = "; that of a private key is ssl.key.password" if store == "keystore" else ""
        raise ValueError(
            f"{within}ssl.{store}.password is given, but PEM has no password{hint}: leave it out"
        )


def _require_for(module: str, options: dict[str, Any]) -> None:
    """Raise ValueError if a login module is unknown or does not fit the mechanism; set the mechanism if the
    module leaves no choice."""
    name = module.rpartition(".")[2]
    mechanism = options.get("sasl_mechanism")
    if name not in _LOGIN_MODULES:
        *most, last = _LOGIN_MODULES
        raise ValueError(f"{_JAAS} names {module}; it takes {', '.join(most)} or {last}")
    if mechanism is not None and mechanism not in _LOGIN_MODULES[name]:
        raise ValueError(f"{_JAAS} names {name}, which is not for sasl.mechanism={mechanism}")
    if mechanism is None and len(_LOGIN_MODULES[name]) == 1:
        (options["sasl_mechanism"],) = _LOGIN_MODULES[name]


# --- OAUTHBEARER --------------------------------------------------------------------------------------------


def _token_provider(given: Mapping[str, str], jaas: Mapping[str, str]) -> TokenProvider:
    """The source of tokens, as Kafka's own classes would choose it."""
    if (handler := given.get(_HANDLER)) and handler not in _HANDLERS:
        raise ValueError(f"{_HANDLER}={handler}: {_NO_JAVA}")
    if (retriever := given.get(_RETRIEVER)) and retriever not in _RETRIEVERS:
        raise ValueError(
            f"{_RETRIEVER}={retriever}: this client asks for tokens with an id and a secret only"
        )
    if (method := given.get("sasl.oauthbearer.method", "oidc").lower()) != "oidc":
        raise ValueError(f"sasl.oauthbearer.method={method}: it takes oidc")
    for name in given:
        if name.startswith("sasl.oauthbearer.assertion."):
            raise ValueError(f"{name}: this client asks for tokens with an id and a secret only")
    url = given.get(_TOKEN_URL)
    if not url:
        raise ValueError(f"sasl.mechanism={OAUTHBEARER} requires {_TOKEN_URL}, the issuer's token endpoint")
    if urlsplit(url).scheme.lower() == "file":
        return TokenFile(unquote(urlsplit(url).path))
    found = {}
    for argument, names in _CREDENTIALS.items():
        values = [given.get(name, jaas.get(name)) for name in names]
        found[argument] = next((each for each in values if each), None)
        if found[argument] is None and argument != "scope":
            raise ValueError(f"{_TOKEN_URL} requires {names[0]}, or {names[-1]} in {_JAAS}")
    from muster.client.security.client_credentials import ClientCredentials  # imports urllib, http and email

    try:
        return ClientCredentials(
            url,
            found["client_id"] or "",
            found["client_secret"] or "",
            scope=found["scope"],
            extensions=_extensions(given, jaas),
            ssl_context=_issuers_context(given, jaas) if urlsplit(url).scheme.lower() == "https" else None,
            urlencode_header=given.get("sasl.oauthbearer.header.urlencode", "").lower() == "true",
            timeout_ms=_milliseconds(given),
        )
    except ValueError as error:
        raise ValueError(str(error).replace("token_url", _TOKEN_URL)) from None


def _extensions(given: Mapping[str, str], jaas: Mapping[str, str]) -> dict[str, str]:
    listed = given.get("sasl.oauthbearer.extensions", "")
    pairs = (part.strip().partition("=") for part in listed.split(",") if part.strip())
    in_jaas = {
        name.removeprefix(_EXTENSION): value for name, value in jaas.items() if name.startswith(_EXTENSION)
    }
    return in_jaas | {name: value for name, _, value in pairs}


def _issuers_context(given: Mapping[str, str], jaas: Mapping[str, str]) -> Any:
    """The TLS context for the token endpoint: as in Java, from ssl options in the JAAS config, which are
    separate from those for brokers; or from librdkafka's properties. Raises ValueError."""
    within = f"{_JAAS}: "
    for store in _STORES:
        _require_pem(store, jaas, within)
    arguments: dict[str, Any] = {
        setting: jaas[name] for name, setting in _DIRECT.items() if name in jaas and name.startswith("ssl.")
    }
    for name, setting in (("https.ca.location", "ssl_cafile"), ("https.ca.pem", "ssl_cadata")):
        if name in given:
            within, arguments = f"{name}: ", {setting: given[name]}
    try:
        return client_context(**{name.removeprefix("ssl_"): value for name, value in arguments.items()})
    except ValueError as error:
        raise ValueError(f"{within}{error}") from None


def _milliseconds(given: Mapping[str, str]) -> int:
    text = given.get(_TIMEOUT, "10000")
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ValueError(f"{_TIMEOUT}={text!r}: it takes milliseconds, above 0")
    return int(text)
