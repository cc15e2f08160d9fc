"""A client's first request to any broker: ApiVersions."""

from __future__ import annotations

from muster.protocol.message import Message, Struct, field, request, response, struct
from muster.protocol.types import Array, Boolean, Int16, Int32, Int64, String


@request(18, versions="0-5", flexible="3+")
class ApiVersionsRequest(Message):
    """ApiVersions v0-5: v1-2 no change here, v3 flexible, name and version of the client's software
    (KIP-511), v4 no change here, v5 the cluster and node the client believes it talks to (KIP-1242).

    A broker reads any version: it answers an unknown one in the layout of v0 with UNSUPPORTED_VERSION.
    """

    client_software_name: str = field(String, "3+", default="", ignorable=True)
    client_software_version: str = field(String, "3+", default="", ignorable=True)
    cluster_id: str | None = field(String, "5+", nullable="5+", default=None, ignorable=True)
    node_id: int = field(Int32, "5+", default=-1, ignorable=True)


@response(18, versions="0-5", flexible="3+")
class ApiVersionsResponse(Message):
    """ApiVersions v0-5: v1 throttle time, v2 throttling after the reply, v3 flexible, features as tags
    (KIP-584), v4 a feature may have the minimum level 0 (left out below v4, where Java clients refuse it), v5
    REBOOTSTRAP_REQUIRED possible (KIP-1242).

    The response header is v0 in every version, since the client cannot know yet which versions the broker
    supports (KIP-511). `finalized_features_epoch` -1 means "unknown".
    """

    @struct
    class ApiVersion(Struct):
        api_key: int = field(Int16, "0+")
        min_version: int = field(Int16, "0+")
        max_version: int = field(Int16, "0+")

    @struct
    class SupportedFeatureKey(Struct):
        name: str = field(String, "3+")
        min_version: int = field(Int16, "3+")
        max_version: int = field(Int16, "3+")

    @struct
    class FinalizedFeatureKey(Struct):
        name: str = field(String, "3+")
        max_version_level: int = field(Int16, "3+")
        min_version_level: int = field(Int16, "3+")

    error_code: int = field(Int16, "0+", default=0)
    api_keys: list[ApiVersion] = field(Array(ApiVersion), "0+")
    throttle_time_ms: int = field(Int32, "1+", default=0, ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(
        Array(SupportedFeatureKey), "3+", tag=0, default_factory=list, ignorable=True
    )
    finalized_features_epoch: int = field(Int64, "3+", tag=1, default=-1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field(
        Array(FinalizedFeatureKey), "3+", tag=2, default_factory=list, ignorable=True
    )
    zk_migration_ready: bool = field(Boolean, "3+", tag=3, default=False, ignorable=True)
