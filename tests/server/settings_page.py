"""docs/settings.md, from the declarations: `python -m tests.server.settings_page` writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from muster.client.consume.settings import ConsumerSettings
from muster.client.produce.settings import ProducerSettings
from muster.client.settings import allowed as allowed_in_clients
from muster.coordinator import config
from muster.coordinator.server.broker_config_specs import BROKER_SPECS
from muster.coordinator.topics.config import described
from muster.settings import Setting, settings_of, text_of

PAGE: Final = Path(__file__).parents[2] / "docs" / "settings.md"

_HEAD: Final = """\
# Settings

<!-- written by: python -m tests.server.settings_page -->

Settings of brokers, topics and muster's clients. A setting that Kafka has too has Kafka's name and default.
"""
_OPTIONS: Final = """\
## `muster serve`

Each option is also a variable: `--group-max-size 10` is `MUSTER_GROUP_MAX_SIZE=10`. The option wins.
"""
_BY_LISTENER: Final = """\
For one listener alone, as Kafka's `listener.name.external.ssl.client.auth`:
`--listener-name-external-ssl-client-auth required`. These can be:"""
_TOPICS: Final = """\
## Topics

Set when a topic is created, or later with `muster topics alter`. The broker setting in the second column
is the default for topics that do not set their own.
"""
_IDLE: Final = "Stored and reported, but without effect:"
_BROKERS: Final = """\
## Brokers while they run

Set with AlterConfigs, for one broker or for all. Besides the topic defaults, these take effect:"""
_CONSUMER: Final = """\
## `muster.client.Consumer`

Keyword arguments, besides `assignors`, `auto_offset_reset`, `listener` and the deserializers.
"""
_PRODUCER: Final = """\
## `muster.client.Producer`

Keyword arguments, besides `partitioner` and the serializers.
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([_HEAD, *_options(), *_topics(), *_brokers(), *_clients()])


def _options() -> Iterator[str]:
    yield _OPTIONS
    for section, settings in groupby(config.SETTINGS.values(), lambda each: each.section):
        yield f"### {section.capitalize()}\n"
        listed = list(settings)
        yield _table("option", listed, lambda each: config.option(each.field), config.allowed)
        if alone := [each for each in listed if each.by_listener]:
            yield f"{_BY_LISTENER} {_names(alone, lambda each: config.option(each.field))}\n"


def _topics() -> Iterator[str]:
    served = [each for _, each in described() if each.served]
    yield _TOPICS
    yield "| config | default from | value | meaning |\n|---|---|---|---|"
    for each in served:
        source = "" if each.default_from is None else f"`{each.default_from}`"
        yield f"| `{each.name}` | {source} | {_cell(each.allowed)} | {_cell(_said(each))} |"
    yield f"\n{_IDLE} {_names(each for _, each in described() if not each.served)}\n"


def _brokers() -> Iterator[str]:
    inherited = {each.default_from for _, each in described()}
    altered = [each for name, each in BROKER_SPECS.items() if each.dynamic and name not in inherited]
    yield f"{_BROKERS} {_names(each for each in altered if each.served)}\n"
    yield f"{_IDLE} {_names(each for each in altered if not each.served)}\n"


def _clients() -> Iterator[str]:
    for head, kind in ((_CONSUMER, ConsumerSettings), (_PRODUCER, ProducerSettings)):
        yield head
        yield _table(
            "argument", settings_of(kind).values(), lambda each: each.field, allowed_in_clients, repr
        )


def _table(
    head: str,
    settings: Iterable[Setting],
    name: Callable[[Setting], str],
    allowed: Callable[[Setting], str],
    value: Callable[[object], str] = text_of,
) -> str:
    rows = [f"| {head} | default | value | meaning |", "|---|---|---|---|"]
    for each in settings:
        default = "none" if each.default in (None, "") else f"`{value(each.default)}`"
        rows.append(f"| `{name(each)}` | {default} | {_cell(allowed(each))} | {_cell(_said(each))} |")
    return "\n".join(rows) + "\n"


def _said(each: Setting) -> str:
    return f"{each.meaning[0].upper()}{each.meaning[1:]}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _names(settings: Iterable[Setting], name: Callable[[Setting], str] = lambda each: each.name) -> str:
    return f"{', '.join(f'`{name(each)}`' for each in settings)}."


if __name__ == "__main__":
    PAGE.write_text(page())
