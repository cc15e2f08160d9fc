"""Writes what was compared into docs/PROOF.md, as counts instead of claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from muster.coordinator.server.apis import APIS
from muster.protocol.api import ApiKey, advertised_versions, versions
from muster.protocol.errors import ErrorCode
from tests.kafka.compared import Compared
from tests.kafka.differences import listed
from tests.kafka.differential.campaign import Campaign, Kind
from tests.kafka.differential.deliberate import RULES
from tests.support.kafka_artifacts import KAFKA_VERSION

PAGE: Final = Path(__file__).parents[3] / "docs" / "PROOF.md"
_BEGIN: Final = "<!-- compared: written by make differential WRITE=1 -->\n"
_END: Final = "<!-- end of compared -->\n"


def gaps(compared: Compared) -> list[tuple[ApiKey, int]]:
    """The versions that muster serves but in which nothing was compared."""
    return [
        (api, version)
        for api in sorted(APIS)
        for version in range(versions(api).first, versions(api).last + 1)
        if version not in compared.versions(ApiKey(api))
    ]


def write(campaigns: Sequence[Campaign], stories: Compared) -> None:
    """Write the results between the page's markers."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    PAGE.write_text(text[:begin] + "\n" + section(campaigns, stories) + "\n" + text[end:], encoding="utf-8")


def section(campaigns: Sequence[Campaign], stories: Compared) -> str:
    """The text between the markers."""
    compared = Compared()
    compared.add(stories)
    for campaign in campaigns:
        compared.add(campaign.compared_answers)
    return "\n".join(
        [
            *_counts(campaigns, stories, compared),
            "",
            "### APIs, versions, errors",
            "",
            *_apis(compared),
            "",
            "### What differs on purpose",
            "",
            *_deliberate(campaigns),
            "",
        ]
    )


def _counts(campaigns: Sequence[Campaign], stories: Compared, compared: Compared) -> Iterable[str]:
    missing = gaps(compared)
    served = sum(versions(api).last - versions(api).first + 1 for api in APIS)
    yield f"Against Apache Kafka {KAFKA_VERSION}, one broker on loopback:"
    yield ""
    yield f"- {stories.muster.versions.total():,} answers of scenarios and stories, field by field"
    for campaign in campaigns:
        yield from _played(campaign)
    yield f"- {served - len(missing)} of the {served} versions that muster serves"


def _played(campaign: Campaign) -> Iterable[str]:
    found = len(campaign.findings)
    what = {
        Kind.CLASSIC: "against classic groups",
        Kind.CONSUMER: "against consumer groups, and groups that migrate between the protocols",
    }[campaign.kind]
    yield (
        f"- {campaign.compared:,} random sequences of {campaign.steps:,} steps {what} (seeds from "
        f"{campaign.seed}, {campaign.timed_compared:,} of them with timeouts that run out), "
        f"{campaign.compared_answers.muster.versions.total():,} answers"
    )
    yield (
        f"  - of these, {campaign.lucky:,} were played again, since Kafka picks a new leader by the hashes "
        f"of random ids; {campaign.cut:,} are compared only up to there"
        + (
            f", and {campaign.too_slow:,} with timeouts {'was' if campaign.too_slow == 1 else 'were'} not "
            "compared, because the machine was too slow"
            if campaign.too_slow
            else ""
        )
    )
    yield f"  - {found or 'no'} difference{'' if found == 1 else 's'} but those listed below"
    passing = len(campaign.passing)
    yield f"  - {passing} difference{'' if passing == 1 else 's'} that did not recur in both of two replays"


def _apis(compared: Compared) -> Iterable[str]:
    yield "| API | versions served | compared | answers | error codes that both gave |"
    yield "|---|---|---|---:|---|"
    for key in sorted(APIS):
        api = ApiKey(key)
        first, last = versions(api)
        found = compared.versions(api)
        there = [version for version in range(first, last + 1) if version in found]
        errors = ", ".join(_error(code) for code in compared.errors(api)) or "none"
        answers = sum(found.values())
        yield f"| {api.name} | {_span(range(first, last + 1))} | {_span(there)} | {answers:,} | {errors} |"
    beyond = [ApiKey(api).name for api in sorted(APIS) if advertised_versions(api) != versions(api)]
    if beyond:
        yield ""
        yield f"{', '.join(beyond)}: lower versions are advertised and refused, as Kafka does both."


def _span(numbers: Iterable[int]) -> str:
    """Format numbers as `0-3, 5`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in spans) or "none"


def _error(code: int) -> str:
    return ErrorCode(code).name if code in set(ErrorCode) else str(code)


def _deliberate(campaigns: Sequence[Campaign]) -> Iterable[str]:
    yield "| in random sequences | why | met |"
    yield "|---|---|---:|"
    for rule in RULES:
        met = sum(campaign.deliberate[rule.what] for campaign in campaigns)
        yield f"| {rule.what} | {rule.why} | {met:,} |"
    rows = listed()
    yield ""
    yield (
        f"[DIFFERENCES.md](../tests/kafka/DIFFERENCES.md) lists {len(rows)} fields of answers in "
        f"{_stories(rows)} scenarios and stories, each with its reason; those of configs stand in "
        "[test_configs.py](../tests/kafka/test_configs.py). `make kafka` fails when one of them no longer "
        "occurs."
    )


def _stories(rows: Iterable[Sequence[str]]) -> int:
    return len({row[0] for row in rows})
