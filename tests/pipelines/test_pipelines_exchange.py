"""The exchange: parts, merged or not, give every bucket its rows; a bad file's rows are taken back."""

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import exchange, part_buffer
from pipelines.exchange import merge_parts, merge_rounds, read_bucket, write_part
from pipelines.part_buffer import PartBuffer
from pipelines.storage import Location

SCHEMA = pa.schema([("bucket", pa.int32()), ("text", pa.string())])
ROWS = st.lists(st.tuples(st.integers(0, 6), st.text(max_size=3)), max_size=12)


def table(rows):
    return pa.table([[row[0] for row in rows], [row[1] for row in rows]], schema=SCHEMA)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(ROWS, min_size=1, max_size=5))
def test_merged_parts_hold_the_rows_of_their_parts_in_the_same_buckets(tmp_path_factory, parts):
    folder = Location.parse(tmp_path_factory.mktemp("exchange"))
    places = [folder / f"part-{i}" for i in range(len(parts))]
    for place, rows in zip(places, parts, strict=True):
        write_part(place, table(rows), num_buckets=9)
    merge_parts(places, folder / "merged")
    for bucket in range(9):
        wanted = [text for rows in parts for b, text in rows if b == bucket]
        found = read_bucket(places, bucket, SCHEMA).column("text").to_pylist()
        assert sorted(found) == sorted(wanted)
        assert read_bucket([folder / "merged"], bucket, SCHEMA).column("text").to_pylist() == found


def test_parts_are_merged_in_rounds_until_they_are_few(monkeypatch):
    monkeypatch.setattr(exchange, "MAX_PARTS", 3)
    monkeypatch.setattr(exchange, "_FAN_IN", 4)
    rounds = []

    def merge(number, items):
        rounds.append((number, len(items), max(len(spec["parts"]) for spec in items.values())))
        return list(items)

    assert len(merge_rounds([str(i) for i in range(30)], merge)) == 2
    assert rounds == [("0", 8, 4), ("1", 2, 4)]
    assert merge_rounds(["a", "b"], merge) == ["a", "b"]


@settings(max_examples=60)
@given(files=st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=6), st.booleans()), max_size=6))
def test_of_files_that_turn_out_bad_no_row_stays_and_of_the_others_every_row(files):
    written = {}
    buffer = PartBuffer(written.__setitem__, written.pop)
    number, wanted = 0, []
    with_patch = part_buffer.PART_BYTES
    part_buffer.PART_BYTES = 40
    try:
        for sizes, good in files:
            rows = [(0, f"{number}-{i}") for i in range(len(sizes))]
            for row in rows:
                buffer.add(table([row]))
            number += 1
            if good:
                buffer.commit()
                wanted += [text for _, text in rows]
            else:
                buffer.rollback()
        assert buffer.close() == len(written)
    finally:
        part_buffer.PART_BYTES = with_patch
    assert sorted(written) == list(range(len(written)))
    assert [text for i in range(len(written)) for text in written[i].column("text").to_pylist()] == wanted
