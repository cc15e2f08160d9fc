"""The ACL gate: checks what a request needs, as its API declares (`needs`), against the rights of its client.
A request that is refused is not begun; one that is refused in part is begun without that part. However many
elements a request has, no turn of the loop checks more than `_AT_ONCE`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from muster.coordinator.base.answers import Answered, Later
from muster.coordinator.base.step import RequestContext
from muster.coordinator.server.api import Api, Begin
from muster.coordinator.server.apis.several import Turns
from muster.coordinator.server.needs import Asking, Division
from muster.coordinator.server.refusal import joined
from muster.coordinator.server.serving import Broker
from muster.coordinator.server.unserved import produce_failed
from muster.protocol.errors import KafkaError
from muster.protocol.message import Message
from muster.protocol.messages.data import ProduceRequest

_AT_ONCE: Final = 1_000
"""Elements that are checked in a turn of the loop: some milliseconds."""


def decided(broker: Broker, api: Api, request: Any, context: RequestContext) -> Begin | KafkaError | None:
    """Why a whole request is refused; or what begins one that is refused in part, or has too many elements
    for a turn of the loop; None if nothing is refused and the API does."""
    asking = Asking(broker.rights(context), broker, context)
    refused = api.needs.refusal(asking, request)
    if refused is not None:
        return refused
    elements = api.needs.listed(request)
    if not elements:
        return None
    if len(elements) <= _AT_ONCE:
        division = _division(api, asking, request)
        if division is None or isinstance(division, KafkaError):
            return division

    def begin(broker: Broker, request: Any, context: RequestContext, answered: Answered) -> object:
        # Divided again: a fault may have a part of the request begun on its own.
        if len(api.needs.listed(request)) > _AT_ONCE:
            task = _begin_in_turns(broker, api, request, context, answered)
            return asyncio.get_running_loop().create_task(task, name=api.name)
        asking = Asking(broker.rights(context), broker, context)
        return _begin(broker, api, request, context, answered, _division(api, asking, request))

    return begin


def _division(api: Api, asking: Asking, request: Any) -> Division | KafkaError | None:
    dividing = api.needs.dividing(asking, request)
    for each in api.needs.listed(request):
        refused = dividing.add(each)
        if refused is not None:
            return refused
    return dividing.division()


async def _begin_in_turns(
    broker: Broker, api: Api, request: Any, context: RequestContext, answered: Answered
) -> None:
    answer: object
    try:
        dividing = api.needs.dividing(Asking(broker.rights(context), broker, context), request)
        turns = Turns()
        refused = None
        for each in api.needs.listed(request):
            await turns.next()
            refused = dividing.add(each)
            if refused is not None:
                break
        answer = _begin(broker, api, request, context, answered, refused or dividing.division())
    except Exception as error:
        answer = error
    if isinstance(answer, asyncio.Task):
        await answer  # cancelled along with this one
    elif not isinstance(answer, Later):
        answered(answer)


def _begin(
    broker: Broker,
    api: Api,
    request: Any,
    context: RequestContext,
    answered: Answered,
    division: Division | KafkaError | None,
) -> object:
    if division is None:
        return api.begin(broker, request, context, answered)
    if isinstance(division, KafkaError):
        return division
    if division.rest is None:
        return _answer(api, request, division, context, None)

    def whole(answer: object) -> object:
        return _answer(api, request, division, context, answer)

    answer = api.begin(broker, division.rest, context, lambda answer: answered(whole(answer)))
    return answer if isinstance(answer, Later | asyncio.Task) else whole(answer)


def _answer(api: Api, request: Any, division: Division, context: RequestContext, answer: object) -> object:
    """The answer to the whole request, from the answer to the rest of it."""
    if isinstance(request, ProduceRequest) and request.acks == 0:
        error, part = division.refused[0]
        topic = part.topic_data[0]
        return produce_failed(f"{topic.name or topic.topic_id}: {error}")
    version = context.api_version
    if isinstance(answer, KafkaError) and api.concerns_parts(answer.code, version):
        answer = api.partial_refusal(division.rest, version, answer)
    if isinstance(answer, Exception):
        return answer
    whole: Message | None = answer  # type: ignore[assignment]
    for error, part in division.refused:
        refusal = api.partial_refusal(part, version, error)
        whole = refusal if whole is None else joined(whole, refusal)
    return whole
