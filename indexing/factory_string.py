"""What a FAISS factory string says: its lists, its graph, its bytes for a row, and the codes there are.

Pure arithmetic on names; must not know FAISS objects, sizes of a corpus or what is wanted.
"""

import math
import re

ID_BYTES = 8
HNSW_LINK_BYTES = 4
# Of a graph's row beside its links: level, offset, and its share of the upper layers.
HNSW_ROW_BYTES = 16
# Of an inverted list beside its rows: their number.
LIST_BYTES = 8
# Parts of a vector for 8-bit product codes, in numbers: below 3 training takes minutes for nothing, beyond 32
# no re-ranking mends what is lost.
MIN_PART, MAX_PART = 3, 32
# Of a 4-bit product code; with fewer, vectors of few dimensions are found too rarely to be worth re-ranking
# (docs/log.md).
MIN_FOUR_BIT_PARTS = 64
# What a factory string may put in front that would make inner products other ones: whitening, centring with
# binary codes, and scaling to length 1.
_BENDING = ("PCAW", "ITQ", "L2norm")
_TRANSFORM = re.compile(r"(?P<name>PCAR?|RR|Pad|OPQ\d+_?)(?P<dim>\d+)?,")
_LISTS = re.compile(r"(?:^|,)IVF(?P<number>\d+)(?P<unit>[kM]?)(?P<graph>_HNSW(?P<degree>\d*))?")
_PRODUCT = re.compile(r"PQ(?P<parts>\d+)(?:x(?P<bits>\d+))?(?:fs|np)*(?:_\d+)?")
_SCALAR = {"SQ8": 1.0, "SQ6": 0.75, "SQ4": 0.5, "SQfp16": 2.0, "SQbf16": 2.0}
_UNITS = {"": 1, "k": 2**10, "M": 2**20}
_DEFAULT_DEGREE = 32


def bytes_per_vector(factory: str, dim: int) -> int:
    """Storage of one row of the factory's type, 8 bytes of id included, without what all rows share."""
    return resident_bytes_per_vector(factory, dim) + math.ceil(scan_and_refine_bytes(factory, dim)[1])


def resident_bytes_per_vector(factory: str, dim: int) -> int:
    """The part of `bytes_per_vector` that every search reads: codes, links and ids."""
    scan, refine = scan_and_refine_bytes(factory, dim)
    degree = graph_degree(factory)
    # Lists below a re-ranking store hold places, and an id map turns these into row ids: both are 8 bytes.
    num_ids = 2 if refine and num_lists_in(factory) else 1
    return math.ceil(scan) + _graph_bytes(degree) + num_ids * ID_BYTES


def shared_bytes(factory: str, dim: int) -> int:
    """What all rows share: matrices of transforms, centroids and their graph, tables of codes."""
    body, refine = _split_refine(factory)
    code, width, size = _behind_transforms(body, dim)
    if lists := _LISTS.search(code):
        graph = _graph_bytes(int(lists["degree"] or _DEFAULT_DEGREE)) if lists["graph"] else 0
        size += num_lists_in(code) * (4 * width + graph + LIST_BYTES)
    size += _table_bytes(_last(code), width)
    if refine:
        code, width, matrices = _behind_transforms(refine, dim)
        size += matrices + _table_bytes(_last(code), width)
    return size


def num_lists_in(factory: str) -> int:
    """Inverted lists, 0 for a type without them."""
    found = _LISTS.search(factory)
    return int(found["number"]) * _UNITS[found["unit"]] if found else 0


def _without_coarse(factory: str) -> str:
    return re.sub(r"IVF\d+[kM]?(_HNSW\d*|\(.*?\))?", "IVF", factory)


def needs_id_map(factory: str) -> bool:
    """Whether the type cannot keep row ids itself."""
    if factory.startswith("IDMap"):
        return False
    return num_lists_in(factory) == 0 or bool(re.search(r"R(Flat|efine)", factory))


def graph_degree(factory: str) -> int:
    """Links of a row in its graph, 0 for a type without one; a graph over centroids is none."""
    found = re.search(r"HNSW(\d*)", _without_coarse(factory))
    return int(found.group(1) or _DEFAULT_DEGREE) if found else 0


def coded_dim(factory: str, dim: int) -> int:
    """Width of the vectors that lists and codes are made of, behind the transforms in front."""
    return _behind_transforms(_split_refine(factory)[0], dim)[1]


def scan_and_refine_bytes(factory: str, dim: int) -> tuple[float, float]:
    """Bytes of a row's code, and of its vector for re-ranking (0 without one), which no transform narrows."""
    body, refine = _split_refine(factory)
    code, width, _ = _behind_transforms(body, dim)
    scan = _code_bytes(_last(_without_coarse(code)), width)
    if not refine:
        return scan, 0.0
    code, width, _ = _behind_transforms(refine, dim)
    return scan, _code_bytes(_last(code), width)


def _split_refine(factory: str) -> tuple[str, str]:
    """What is searched, and what is kept for re-ranking; "" without it."""
    found = re.search(r",R(?:efine\((.*)\)|Flat)$", factory)
    return (factory[: found.start()], found.group(1) or "Flat") if found else (factory, "")


def _behind_transforms(factory: str, dim: int) -> tuple[str, int, int]:
    """The type behind the transforms in front of it, the width it sees, and the bytes of their matrices."""
    rest, width, size = re.sub(r"^IDMap2?,", "", factory), dim, 0
    while found := _TRANSFORM.match(rest):
        narrow = int(found["dim"] or width)
        if found["name"] == "Pad":
            narrow = max(narrow, width)
            size += 4 * narrow
        else:
            size += 4 * width * narrow
        if found["name"].startswith("PCA"):  # FAISS keeps the whole rotation, means and variances, too
            size += 4 * (width * width + 2 * width + narrow)
        rest, width = rest[found.end() :], narrow
    return rest, width, size


def _last(factory: str) -> str:
    return factory.split(",")[-1]


def _graph_bytes(degree: int) -> int:
    """Links and fields of a row of a graph."""
    return degree * 2 * HNSW_LINK_BYTES + HNSW_ROW_BYTES if degree else 0


def _code_bytes(code: str, dim: int) -> float:
    if product := _PRODUCT.fullmatch(code):
        return int(product["parts"]) * int(product["bits"] or 8) / 8
    if code in _SCALAR:
        return dim * _SCALAR[code]
    if code.startswith("RaBitQ"):
        return dim / 8 + ID_BYTES
    return dim * 4.0


def _table_bytes(code: str, dim: int) -> int:
    """Of a code: the centroids of its parts, or the range of every number."""
    if product := _PRODUCT.fullmatch(code):
        return int(4 * dim * 2 ** int(product["bits"] or 8))
    if code in ("SQ8", "SQ6", "SQ4"):
        return 8 * dim
    return 4 * dim if code.startswith("RaBitQ") else 0


def product_codes(dim: int) -> tuple[str, str]:
    """The larger and the smaller 4-bit product code, of d/2 and d/4 parts; "" where d does not split.

    Never fewer parts than `MIN_FOUR_BIT_PARTS`, or all d where there are fewer; the two may be equal.
    """
    return _four_bit_code(dim, share=2), _four_bit_code(dim, share=4)


def _four_bit_code(dim: int, *, share: int) -> str:
    if dim % share:
        return ""
    wanted = max(dim // share, min(dim, MIN_FOUR_BIT_PARTS))
    parts = next(number for number in range(wanted, dim + 1) if dim % number == 0)
    return f"PQ{parts}x4fs"


def _eight_bit_codes(dim: int, *, below: str) -> list[str]:
    """8-bit product codes, the finest first, smaller than the 4-bit ones there are."""
    limit = _code_bytes(below, dim) if below else dim
    parts = [part for part in range(MIN_PART, MAX_PART + 1) if dim % part == 0 and dim // part < limit]
    return [f"PQ{dim // part}np" for part in parts]


def smallest_codes(dim: int, *, below: str) -> list[str]:
    """Codes smaller than the 4-bit ones there are, the finest first.

    With vectors on disk every candidate that is scored again costs a read. 1-bit codes are among them only
    where the smallest 4-bit code is larger; otherwise it is no worse.
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
