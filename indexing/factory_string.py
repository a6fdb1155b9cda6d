"""What a FAISS factory string says: its lists, its graph, its bytes for a row, and the codes there are.

Pure arithmetic on names; must not know FAISS objects, sizes of a corpus or what is wanted.
"""

import math
import re

ID_BYTES = 8
HNSW_LINK_BYTES = 4
# Of a graph's row beside its links: level, offset, and its share of the upper layers.
HNSW_ROW_BYTES = 16
# Parts of a vector for 8-bit product codes, in numbers: below 3 training takes minutes for nothing, beyond 32
# no re-ranking mends what is lost.
MIN_PART, MAX_PART = 3, 32
# What a factory string may put in front that would make inner products other ones: whitening, centring with
# binary codes, and scaling to length 1.
_BENDING = ("PCAW", "ITQ", "L2norm")


def bytes_per_vector(factory: str, dim: int) -> int:
    """Storage of one row of the factory's type, 8 bytes of id included, without the shared tables."""
    return resident_bytes_per_vector(factory, dim) + math.ceil(scan_and_refine_bytes(factory, dim)[1])


def resident_bytes_per_vector(factory: str, dim: int) -> int:
    """The part of `bytes_per_vector` that every search reads: codes, links and ids."""
    scan, refine = scan_and_refine_bytes(factory, dim)
    degree = graph_degree(factory)
    links = degree * 2 * HNSW_LINK_BYTES + HNSW_ROW_BYTES if degree else 0
    # Lists below a re-ranking store hold places, and an id map turns these into row ids: both are 8 bytes.
    num_ids = 2 if refine and num_lists_in(factory) else 1
    return math.ceil(scan) + links + num_ids * ID_BYTES


def num_lists_in(factory: str) -> int:
    """Inverted lists, 0 for a type without them."""
    found = re.search(r"(?:^|,)IVF(\d+)", factory)
    return int(found.group(1)) if found else 0


def _without_coarse(factory: str) -> str:
    return re.sub(r"IVF\d+(_HNSW\d*|\(.*?\))?", "IVF", factory)


def needs_id_map(factory: str) -> bool:
    """Whether the type cannot keep row ids itself."""
    if factory.startswith("IDMap"):
        return False
    return num_lists_in(factory) == 0 or bool(re.search(r"R(Flat|efine)", factory))


def graph_degree(factory: str) -> int:
    """Links of a row in its graph, 0 for a type without one; a graph over centroids is none."""
    found = re.search(r"HNSW(\d*)", _without_coarse(factory))
    return int(found.group(1) or 32) if found else 0


def scan_and_refine_bytes(factory: str, dim: int) -> tuple[float, float]:
    """Bytes of a row's code, and of its vector for re-ranking (0 without one)."""
    body = _without_coarse(factory)
    refine_part = re.search(r",R(?:efine\((.*?)\)|Flat)$", body)
    refine = 0.0
    if refine_part:
        refine = _code_bytes(refine_part.group(1) or "Flat", dim)
        body = body[: refine_part.start()]
    return _code_bytes(body.split(",")[-1], dim), refine


def _code_bytes(code: str, dim: int) -> float:
    product = re.fullmatch(r"PQ(\d+)(?:x(\d+))?(?:fs|np)*(?:_\d+)?", code)
    if product:
        return int(product.group(1)) * int(product.group(2) or 8) / 8
    scalar = {"SQ8": 1.0, "SQ6": 0.75, "SQ4": 0.5, "SQfp16": 2.0, "SQbf16": 2.0}
    if code in scalar:
        return dim * scalar[code]
    if code.startswith("RaBitQ"):
        return dim / 8 + ID_BYTES
    return dim * 4.0


def product_codes(dim: int) -> tuple[str, str]:
    """4-bit product codes of d/2 and d/4 parts; "" where d does not split."""
    half = f"PQ{dim // 2}x4fs" if dim % 2 == 0 else ""
    return half, f"PQ{dim // 4}x4fs" if dim % 4 == 0 else ""


def _eight_bit_codes(dim: int, *, below: str) -> list[str]:
    """8-bit product codes, the finest first, smaller than the 4-bit ones there are."""
    limit = _code_bytes(below, dim) if below else dim
    parts = [part for part in range(MIN_PART, MAX_PART + 1) if dim % part == 0 and dim // part < limit]
    return [f"PQ{dim // part}np" for part in parts]


def smallest_codes(dim: int, *, below: str) -> list[str]:
    """Codes smaller than the 4-bit ones there are, the finest first.

    With vectors on disk every candidate that is scored again costs a read. 1-bit codes are among them only
    where no 4-bit code takes a quarter of the dimensions, which would be smaller and no worse.
    """
    codes = _eight_bit_codes(dim, below=below)
    if _code_bytes("RaBitQ", dim) < (_code_bytes(below, dim) if below else dim):
        codes.append("RaBitQ")
    return sorted(codes, key=lambda code: -_code_bytes(code, dim))


def refuse_bending(factory: str) -> None:
    """Refuse a factory string with a transform in front that makes inner products other ones.

    Raises:
        ValueError: names it, and what there is instead.
    """
    for part in factory.split(","):
        if part.startswith(_BENDING):
            raise ValueError(
                f"index.factory {factory!r}: {part} changes inner products, by which an index ranks here; "
                "use OPQ, RR, PCA or PCAR, which keep them (PCA is trained without centring)"
            )
