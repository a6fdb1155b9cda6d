"""Options of prepare: HTML, sentences, languages, near-duplicates, equal ids; and rows of bad form."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_builders import write_rows
from prepare_builders import counts_add_up, dropped_of, run, table_of, texts_of

from pipelines import exchange, inputs, part_buffer
from pipelines.cleaning import strip_html, unescape_entities
from pipelines.collection import read_shard
from pipelines.collection_config import CollectionConfig, LanguageConfig, NearDuplicateConfig, SentenceConfig
from pipelines.errors import InputError
from pipelines.near_duplicates import band_shape, ngrams
from pipelines.storage import Location

pytestmark = pytest.mark.usefixtures("_without_ray")


@pytest.mark.parametrize(
    ("html", "lines"),
    [
        ("a &lt; b &amp;amp; c &eacute;", ["a < b &amp; c é"]),
        ("1 < 2 <b>bo</b>ld", ["1 < 2 bold"]),
        ("<p>one</p><p>two<br/>three", ["one", "two", "three"]),
        ("x<script>if (a < b) c()</script><style>p {}</style><!-- no -->y", ["x", "y"]),
    ],
)
def test_mark_up_is_stripped_and_blocks_stand_on_lines_of_their_own(html, lines):
    assert [line for line in strip_html(html).split("\n") if line] == lines
    assert unescape_entities("&#233; &amp;amp;") == "é &amp;"


def test_html_is_stripped_before_cleaning_and_left_alone_by_default(tmp_path):
    write_rows(tmp_path / "a.jsonl", [("1", "<p>one &amp; two</p>"), ("2", "<br>")])
    for html, texts in (
        ("keep", ["<br>", "<p>one &amp; two</p>"]),
        ("entities", ["<br>", "<p>one & two</p>"]),
        ("strip", ["one & two"]),
    ):
        manifest, _ = run(tmp_path / "a.jsonl", tmp_path / html, html=html)
        assert texts_of(tmp_path / html, manifest) == texts


DOCUMENT = "A heading\n\nDr. Smith came at 3.5 p.m. He was late!\nWas he? Yes."


def test_sentences_have_ids_of_their_document_and_place_whatever_else_is_read(tmp_path):
    write_rows(tmp_path / "one/a.jsonl", [("d7", DOCUMENT), ("d8", None), ("d9", "Yes. x")])
    write_rows(tmp_path / "two/b.csv", [("d1", "Other words."), ("d7", DOCUMENT)])
    settings = {"id_column": "id", "sentences": SentenceConfig(), "min_chars": 2}
    manifest, note = run(tmp_path / "one", tmp_path / "w1", **settings)
    found = {row["doc_id"]: row["text"] for row in table_of(tmp_path / "w1", manifest)}
    assert found == {
        "d7#0": "A heading",
        "d7#1": "Dr. Smith came at 3.5 p.m.",
        "d7#2": "He was late!",
        "d7#3": "Was he?",
        "d7#4": "Yes.",
    }
    counts = manifest.counts
    assert (counts["rows_read"], counts["texts"]) == (3, len(found) + 3)
    assert (counts["dropped_null"], counts["dropped_duplicate"], counts["dropped_too_short"]) == (1, 1, 1)
    assert "texts in 3 rows kept" in note
    other, _ = run(tmp_path / "two", tmp_path / "w2", **settings)
    again = {row["doc_id"]: row["text"] for row in table_of(tmp_path / "w2", other)}
    assert again == found | {"d1#0": "Other words."}


GERMAN = (
    "Überschrift\n\nDr. Müller kam am 3. Oktober um 15.30 Uhr an. „Wo ist er?“, fragte sie. "
    "Das kostet ca. 3,50 Euro, d. h. wenig! Prof. Weiß schwieg."
)
JAPANESE = "吾輩は猫である。名前はまだ無い。\n\nすごい！どこで生れたか、頭の中で3.5回も考えた？分からぬ。"


@pytest.mark.parametrize(
    ("language", "document", "sentences"),
    [
        (
            *("de", GERMAN),
            [
                "Überschrift",
                "Dr. Müller kam am 3. Oktober um 15.30 Uhr an.",
                "„Wo ist er?“, fragte sie.",
                "Das kostet ca. 3,50 Euro, d. h. wenig!",
                "Prof. Weiß schwieg.",
            ],
        ),
        (
            *("ja", JAPANESE),
            [
                "吾輩は猫である。",
                "名前はまだ無い。",
                "すごい！",
                "どこで生れたか、頭の中で3.5回も考えた？",
                "分からぬ。",
            ],
        ),
    ],
    ids=["German", "Japanese"],
)
def test_documents_of_other_languages_are_cut_by_their_rules(tmp_path, language, document, sentences):
    write_rows(tmp_path / "a.jsonl", [("d", document)])
    settings = {"id_column": "id", "sentences": SentenceConfig(language=language)}
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", **settings)
    found = {row["doc_id"]: row["text"] for row in table_of(tmp_path / "w", manifest)}
    assert found == {f"d#{number}": sentence for number, sentence in enumerate(sentences)}
    assert (manifest.counts["rows_read"], manifest.counts["texts"]) == (1, len(sentences))


def test_the_language_of_sentences_decides_where_they_end(tmp_path):
    write_rows(tmp_path / "a.jsonl", [("d", GERMAN)])
    settings = {"id_column": "id", "sentences": SentenceConfig(language="en")}
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", **settings)
    assert "Dr. Müller kam am 3." in texts_of(tmp_path / "w", manifest)


def test_without_an_id_column_a_sentence_s_id_is_made_of_its_document_s_text(tmp_path):
    write_rows(tmp_path / "a.jsonl", [("1", DOCUMENT)])
    write_rows(tmp_path / "b.jsonl", [("9", "Zzz."), ("2", DOCUMENT.replace("\n", " \n"))])
    settings = {"sentences": SentenceConfig(max_document_chars=1_000)}
    ids = []
    for name in ("a", "b"):
        manifest, _ = run(tmp_path / f"{name}.jsonl", tmp_path / name, **settings)
        ids.append({row["text"]: row["doc_id"] for row in table_of(tmp_path / name, manifest)})
    assert ids[1].items() >= ids[0].items()
    write_rows(tmp_path / "c.jsonl", [("1", "word. " * 200), ("2", "fine.")])
    manifest, _ = run(tmp_path / "c.jsonl", tmp_path / "c", **settings)
    assert manifest.counts["dropped_too_long"] == 1


def test_rows_of_other_languages_are_set_aside(tmp_path):
    english = "The weather was fine and we walked along the river for hours."
    german = "Das Wetter war schön und wir gingen stundenlang am Fluss spazieren."
    write_rows(tmp_path / "a.jsonl", [("1", english), ("2", german)])
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", languages=LanguageConfig(allowed=("en",)))
    assert texts_of(tmp_path / "w", manifest) == [english]
    assert counts_add_up(tmp_path / "w", manifest)["dropped_language"] == 1
    with pytest.raises(InputError, match=r"language 'xx' is not known; choose from .*de.*en"):
        run(tmp_path / "a.jsonl", tmp_path / "w", languages=LanguageConfig(allowed=("xx",)))


def conflicting(tmp_path, name, order):
    rows = [("1", "text one"), ("1", "text two"), ("2", "text one"), ("1", "text two"), ("3", "alone")]
    for place, row in enumerate(rows[i] for i in order):
        write_rows(tmp_path / f"{name}/{place}.jsonl", [row])
    return tmp_path / name


def test_of_different_texts_with_one_id_one_stays_whatever_the_order(tmp_path):
    digests = set()
    for name, order in (("a", (0, 1, 2, 3, 4)), ("b", (4, 3, 2, 1, 0)), ("c", (1, 0, 3, 4, 2))):
        source = conflicting(tmp_path, name, order)
        manifest, _ = run(source, tmp_path / f"w{name}", id_column="id", num_shards=3)
        counts = counts_add_up(tmp_path / f"w{name}", manifest)
        assert counts["dropped_equal_id"] == 1
        rows = {(row["doc_id"], row["text"]) for row in table_of(tmp_path / f"w{name}", manifest)}
        assert ("3", "alone") in rows
        assert ({("1", "text one")} <= rows) != ({("2", "text one"), ("1", "text two")} <= rows)
        digests.add(manifest.digest)
    assert len(digests) == 1
    kept, _ = run(source, tmp_path / "keep", id_column="id", on_equal_ids="keep")
    assert kept.counts["rows_kept"] == 3
    with pytest.raises(InputError, match=r"id '1' of column 'id' stands for different texts"):
        run(source, tmp_path / "fail", id_column="id", on_equal_ids="fail")


def near_rows():
    words = random.Random(0)
    rows = []
    for i in range(40):
        text = " ".join(words.choices([f"word{n}" for n in range(500)], k=40))
        rows += [(f"b{i}", text), (f"c{i}", text.upper() + "!")]
        rows.append((f"a{i}", text + " end" if i % 2 else " ".join(words.choices("xyzuvw", k=40))))
    return rows


def test_near_duplicates_leave_the_lowest_id_whatever_the_order_and_the_number_of_shards(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(inputs, "_PIECE_FILES", 2)
    monkeypatch.setattr(exchange, "MAX_PARTS", 3)
    kept = []
    for name, num_shards, step in (("one", 1, 120), ("many", 5, 7)):
        rows = random.Random(step).sample(near_rows(), 120)
        for i in range(0, 120, step):
            write_rows(tmp_path / f"{name}/{i}.jsonl", rows[i : i + step])
        manifest, _ = run(
            *(tmp_path / name, tmp_path / f"w-{name}"),
            id_column="id",
            num_shards=num_shards,
            near_duplicates=NearDuplicateConfig(threshold=0.8),
        )
        assert counts_add_up(tmp_path / f"w-{name}", manifest)["dropped_near_duplicate"] == 60
        found = table_of(tmp_path / f"w-{name}", manifest)
        kept.append(sorted(row["doc_id"] for row in found))
        assert len({row["row_id"] for row in found}) == len(found)
        assert {p.name for p in (tmp_path / f"w-{name}/corpus").iterdir() if p.is_dir()} == {"dropped"}
    assert kept[0] == kept[1]
    assert {f"a{i}" for i in range(40)} | {f"b{i}" for i in range(0, 40, 2)} == set(kept[0])


def test_texts_without_letters_are_no_near_duplicates_of_each_other(tmp_path):
    write_rows(tmp_path / "a.jsonl", [("1", "!!!"), ("2", "???"), ("3", "...")])
    manifest, _ = run(tmp_path / "a.jsonl", tmp_path / "w", near_duplicates=NearDuplicateConfig())
    assert manifest.counts["rows_kept"] == 3
    assert ngrams("-- ", 5) == []
    assert sorted(ngrams("A b!", 5)) == ["a b"]


def test_bands_are_shaped_for_the_threshold():
    for threshold in (0.5, 0.8, 0.9):
        num_bands, num_rows = band_shape(threshold, 128)
        assert num_bands * num_rows <= 128

        def found(similarity, num_bands=num_bands, num_rows=num_rows):
            return 1 - (1 - similarity**num_rows) ** num_bands

        assert found(threshold - 0.2) < 0.12
        assert found(min(0.99, threshold + 0.1)) > 0.8


def test_a_text_repeated_in_many_places_travels_once_per_part_and_is_counted(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "pipelines.prepare_read.write_part",
        lambda place, rows, **options: (
            written.append(rows.num_rows) or exchange.write_part(place, rows, **options)
        ),
    )
    monkeypatch.setattr(part_buffer, "PART_BYTES", 200_000)
    (tmp_path / "a.txt").write_text("the same line\n" * 20_000 + "another\n")
    manifest, _ = run(tmp_path / "a.txt", tmp_path / "w", num_shards=2)
    assert sum(written) <= 2 * len(written)
    assert len(written) > 1
    counts = counts_add_up(tmp_path / "w", manifest)
    assert (counts["rows_kept"], counts["dropped_duplicate"]) == (2, 19_999)


@pytest.mark.parametrize("ending", ["txt", "jsonl"])
def test_a_file_cut_at_line_ends_equals_the_whole_and_its_rows_keep_their_numbers(
    tmp_path, monkeypatch, ending
):
    texts = [f"line {i} " + "word " * (i % 9) for i in range(300)]
    texts[40], texts[250] = "", texts[3]
    write_rows(tmp_path / f"a.{ending}", [(text,) for text in texts], columns=("text",))
    whole, _ = run(tmp_path / f"a.{ending}", tmp_path / "whole", num_shards=3)
    monkeypatch.setattr(inputs, "_PIECE_BYTES", 700)
    cut, _ = run(tmp_path / f"a.{ending}", tmp_path / "cut", num_shards=3)
    assert (cut.digest, cut.counts["rows_kept"]) == (whole.digest, 298)
    assert sorted((r["row"], r["reason"]) for r in dropped_of(tmp_path / "cut")) == [
        (40, "empty"),
        (250, "duplicate"),
    ]


def test_rows_of_bad_form_are_set_aside_with_file_row_and_reason(tmp_path):
    (tmp_path / "a.csv").write_bytes(
        b'text,n\ngood one,1\n"open,2\ngood two,3\ncaf\xe9,4\nx,5,6\ngood three,7\n'
    )
    (tmp_path / "b.jsonl").write_bytes(
        b'{"text": "good four"}\nnot json\n{"text": 5}\n{"text": "\\u0000\\u0007"}\n'
    )
    raw = pa.array([b"good five", None, b"caf\xe9"], pa.binary())
    pq.write_table(
        pa.table({"text": pa.Array.from_buffers(pa.string(), 3, raw.buffers())}), tmp_path / "c.parquet"
    )
    huge = "y" * 50_000_000
    pq.write_table(pa.table({"text": ["good six", huge]}), tmp_path / "d.parquet")
    manifest, _ = run(tmp_path, tmp_path / "w/x", num_shards=2)
    assert counts_add_up(tmp_path / "w/x", manifest)["rows_kept"] == 6
    assert sorted((r["file"], r["row"], r["reason"]) for r in dropped_of(tmp_path / "w/x")) == [
        ("a.csv", 1, "bad_quotes"),
        ("a.csv", 3, "invalid_utf8"),
        ("a.csv", 4, "wrong_columns"),
        ("b.jsonl", 1, "not_json"),
        ("b.jsonl", 2, "wrong_type"),
        ("b.jsonl", 3, "empty"),
        ("c.parquet", 1, "null"),
        ("c.parquet", 2, "invalid_utf8"),
        ("d.parquet", 1, "too_long"),
    ]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_kept_columns_stay_with_their_row_as_text(tmp_path, ending):
    rows = [(f"id-{i}", f"a text {i}", None if i == 3 else f"y{i}", f'"{i}') for i in range(9)]
    source = write_rows(tmp_path / f"in.{ending}", rows, columns=("id", "text", "year", "lang"))
    kept = ("year", "lang")
    manifest, _ = run(source, tmp_path / "w", id_column="id", keep_columns=kept)
    found = pa.concat_tables(
        [
            read_shard(Location.parse(tmp_path / "w") / "corpus", s.name, ["doc_id", *kept])
            for s in manifest.shards
        ]
    ).to_pylist()
    wanted = {row[0]: row[2:] for row in rows}
    empty = (None, "") if ending == "csv" else (None,)
    assert len(found) == len(rows)
    for row in found:
        year, lang = wanted[row["doc_id"]]
        assert row["year"] == year or (year is None and row["year"] in empty)
        assert row["lang"] == lang


def test_kept_columns_that_prepare_writes_itself_are_refused():
    with pytest.raises(ValueError, match="must not name title"):
        CollectionConfig(keep_columns=("title",))
    with pytest.raises(ValueError, match="twice"):
        CollectionConfig(keep_columns=("year", "year"))
