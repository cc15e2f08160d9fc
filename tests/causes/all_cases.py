"""Every case, for both protocols."""

from typing import Final

from tests.causes.cases import CLASSIC
from tests.causes.consumer_cases import CONSUMER

CASES: Final = (*CLASSIC, *CONSUMER)
