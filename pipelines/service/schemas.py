"""What requests and answers look like; FastAPI checks the former and documents both.

Sizes that are settings (texts, characters, k) are checked in `api`, where the settings are known.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from indexing.fusion import FusionName
from pipelines.unicode_text import lone_surrogate_in

Mode = Literal["dense", "bm25", "hybrid"]
Scorer = Literal["encoder", "cross_encoder"]


class Strict(BaseModel):
    """A request body in which an unknown field is a mistake."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, value: Any) -> Any:
        if (reason := lone_surrogate_in(value)) is not None:
            raise ValueError(reason)
        return value


class SearchRequest(Strict):
    """Queries, or a document to find others like; and how to rank."""

    query: str | None = Field(None, description="One query.", examples=["read a file line by line"])
    queries: list[str] | None = Field(None, description="Several queries, answered in order.")
    like: str | None = Field(None, description="Id of a document: find others like it, by vectors.")
    k: int = Field(10, ge=1, description="Documents for each query.")
    mode: Mode = Field("dense", description="By vectors, by words, or both rankings fused.")
    filter: str | None = Field(
        None, description="Conditions on columns, joined by `and`.", examples=['title contains "path"']
    )
    fusion: FusionName | None = Field(
        None, description="Of hybrid: by reciprocal rank (rrf) or weighted scores; else the service's own."
    )
    rrf_k: int | None = Field(None, ge=1, description="Of rrf: a hit counts share / (k + rank).")
    dense_weight: float | None = Field(None, gt=0, lt=1, description="Of hybrid: share of the dense ranking.")
    rerank: bool = Field(False, description="Score the best hits again with the cross-encoder.")


class HitModel(BaseModel):
    """A ranked document."""

    rank: int
    doc_id: str
    score: float
    title: str | None
    text: str
    columns: dict[str, Any]


class Ranking(BaseModel):
    """A query with its hits, best first."""

    query: str
    hits: list[HitModel]


class SearchResponse(BaseModel):
    """Rankings in the order of the queries, and the version that made them."""

    results: list[Ranking]
    version: str = Field(description="Of the index and encoder that answered; see /live.")


class EmbedRequest(Strict):
    """Texts to embed."""

    texts: list[str]


class EmbedResponse(BaseModel):
    """float32 vectors in the order of the texts."""

    vectors: list[list[float]]
    dim: int
    version: str


class Candidate(Strict):
    """A text to rank, with its id."""

    id: str
    text: str


class RerankRequest(Strict):
    """A query and the texts to put in order."""

    query: str
    candidates: list[str | Candidate] = Field(description="Texts, or objects with id and text.")
    model: Scorer = Field("encoder", description="Cosine of the encoder, or the cross-encoder's value.")


class RankedCandidate(BaseModel):
    """A candidate in its new place; `index` is its place in the request, from 0."""

    rank: int
    index: int
    id: str
    score: float


class RerankResponse(BaseModel):
    """Candidates, best first; equal scores keep the order of the request."""

    results: list[RankedCandidate]
    version: str


class ErrorModel(BaseModel):
    """Why a request was refused."""

    error: str
