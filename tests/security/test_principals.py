"""Certificate subjects, as Java writes them, and the rules that map them to users.

The expected subjects are what `X500Principal.getName` of Java 25 returned.
"""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from muster.coordinator.security.principals import PrincipalRules, subject_of

A = x509.NameAttribute

SUBJECTS = [
    (
        [
            A(NameOID.COUNTRY_NAME, "DE"),
            A(NameOID.ORGANIZATION_NAME, "Shop, Inc."),
            A(NameOID.COMMON_NAME, "alice"),
        ],
        r"CN=alice,O=Shop\, Inc.,C=DE",
    ),
    ([A(NameOID.COMMON_NAME, ' a=b+c<d>e#f;g"h\\i ')], r"CN=\ a\=b\+c\<d\>e\#f\;g\"h\\i\ "),
    (
        [A(NameOID.COMMON_NAME, "#lead"), A(NameOID.EMAIL_ADDRESS, "a@b.c")],
        r"1.2.840.113549.1.9.1=#16056140622e63,CN=\#lead",
    ),
    (
        [A(NameOID.COMMON_NAME, "Zoë 日本"), A(NameOID.SURNAME, "Sur"), A(NameOID.SERIAL_NUMBER, "42")],
        "2.5.4.5=#13023432,2.5.4.4=#0c03537572,CN=Zoë 日本",
    ),
    (
        [
            A(NameOID.USER_ID, "u1"),
            A(NameOID.DOMAIN_COMPONENT, "example"),
            A(NameOID.DOMAIN_COMPONENT, "com"),
            A(NameOID.STREET_ADDRESS, "Main st"),
            A(NameOID.STATE_OR_PROVINCE_NAME, "BY"),
            A(NameOID.LOCALITY_NAME, "M"),
        ],
        "L=M,ST=BY,STREET=Main st,DC=com,DC=example,UID=u1",
    ),
    (
        [A(NameOID.COMMON_NAME, "two  spaces"), A(NameOID.ORGANIZATIONAL_UNIT_NAME, "x\ny")],
        "OU=x\ny,CN=two  spaces",
    ),
    ([A(NameOID.COMMON_NAME, "a \n")], "CN=a \n"),
    ([A(NameOID.COMMON_NAME, "  a  b  ")], r"CN=\ \ a  b\ \ "),
    ([A(NameOID.COMMON_NAME, "\r a\rb\0c \r")], "CN=\\\r\\ a\rb\\00c\\ \\\r"),
    ([A(ObjectIdentifier("1.2.3.4"), "priv")], "1.2.3.4=#0c0470726976"),
    ([A(ObjectIdentifier("1.2.3.4"), "x" * 300)], "1.2.3.4=#0c82012c" + "78" * 300),
    ([], ""),
]


def certificate(subject: x509.Name) -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([A(NameOID.COMMON_NAME, "CA")]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, None)
        .public_bytes(Encoding.DER)
    )


@pytest.mark.parametrize(("parts", "written"), SUBJECTS)
def test_a_subject_is_written_as_java_does(parts: list[x509.NameAttribute[str]], written: str) -> None:
    assert subject_of(certificate(x509.Name(parts))) == written


def test_parts_of_several_values() -> None:
    several = x509.RelativeDistinguishedName(
        [
            A(NameOID.COMMON_NAME, "multi"),
            A(NameOID.ORGANIZATIONAL_UNIT_NAME, "val"),
            A(NameOID.EMAIL_ADDRESS, "z@z"),
        ]
    )
    assert subject_of(certificate(x509.Name([several]))) == "OU=val+CN=multi+1.2.840.113549.1.9.1=#16037a407a"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=alice,O=Shop", "CN=alice,O=Shop"),
        ("RULE:^CN=(.*?),O=.*$/$1/", "CN=Alice,O=Shop", "Alice"),
        ("RULE:^CN=(.*?),O=.*$/$1/L", "CN=Alice,O=Shop", "alice"),
        ("RULE:^CN=(.*?),O=.*$/$1/U, DEFAULT", "CN=Alice,O=Shop", "ALICE"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,RULE:^CN=(.*)$/$1/,DEFAULT", "CN=x,OU=y,O=z", "x@y"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,RULE:^CN=(.*)$/$1/,DEFAULT", "CN=x", "x"),
        ("RULE:CN=(a),.*/$1/", "CN=a", None),
        ("RULE:CN=(.)/$1/", "CN=ab", None),  # a pattern must match the whole subject
        (r"RULE:CN=(.*)\/(.*)/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:CN=(a)|CN=(b)/$1$2/", "CN=b", "b"),
    ],
)
def test_rules(rules: str, subject: str, user: str | None) -> None:
    assert PrincipalRules.read(rules).user_of(subject) == user


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("default", "is no rule"),
        ("RULE:CN=(.*)/$1", "is no rule"),
        ("RULE:CN=(.*/$1/", "cannot be used"),
        ("RULE:CN=(?=x).*/$1/", "cannot be used"),
        ("RULE:CN=(.*)/$2/", r"takes \$2, and its pattern has 1 groups"),
        ("RULE:CN=(.*)/$1/X", "is no rule"),
        ("DEFAULT,,RULE:a/b/", "is no rule"),
    ],
)
def test_what_is_no_rule_is_refused(rules: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PrincipalRules.read(rules)
