"""The documentation corpus: clean prose out, queries held out, same bytes every time, whole or absent."""

import hashlib
import json
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import docs_corpus
from pipelines.docs_corpus import write_docs_corpus
from pipelines.docs_prose import prose_paragraphs
from pipelines.docs_sentences import is_complete, is_prose, sentence_key, split_sentences, template_key
from pipelines.docs_sources import SourceFile, parse_files

NUMPY_STYLE = '''
def smooth(signal):
    """
    Smooth a signal with a window of the given shape.

    The window is scaled, so that the sum of its weights is one, and then moved
    over the signal from the left to the right, e.g. by steps of 0.5 seconds.

    .. versionadded:: 1.2
       Never seen in the corpus, because it belongs to a directive.

    Parameters
    ----------
    signal : ndarray
        The input signal that nobody should see in the corpus.

    Returns
    -------
    ndarray
        The smoothed signal that nobody should see in the corpus.

    Notes
    -----
    See :func:`~signals.core.window` for the ``width`` that is used by default.

    Examples
    --------
    >>> smooth([1, 2])
    This output is not prose for the corpus at all.
    """
'''
GOOGLE_STYLE = '''
class Store:
    """Keeps the values of the last request in memory.

    Values are written to the disk as soon as the memory limit of 1.5 GiB is reached, which
    may slow down the request that is being served at that moment.

    Args:
        limit: The most bytes that nobody should see in the corpus.

    Note:
        A store that is full refuses every new value until it has been flushed.
    """

    def flush(self):
        """Write all values that are still in memory to the disk.

        :param force: whether nobody should see this in the corpus
        :returns: the number of values that nobody should see in the corpus

        The call blocks until the operating system reports that the data are safe, see the manual
        of [the file system](https://example.org/fs) for what that means on your machine.

        ```python
        store.flush()  # This is code and it is not prose for the corpus.
        ```
        """

    def _secret(self):
        """Count the values which are waiting in the queue of the store.

        The private helper has many words in its own documentation, which are fine for training but are
        no document that anybody would search for in the whole collection.
        """
'''


def install(site: Path, name: str, *, version: str = "1.0", files: dict[str, str]) -> None:
    """A distribution as pip leaves it: sources, METADATA and RECORD."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    metadata = f"""\
        Metadata-Version: 2.4
        Name: {name}
        Version: {version}
        Summary: A small library for the processing of {name} on any machine.
        License-Expression: MIT
    """
    (info / "METADATA").write_text(textwrap.dedent(metadata))
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    copied = NUMPY_STYLE.replace("def smooth", "def smooth_again")
    rows = "".join(
        f'\ndef row_{number}(): """Read the row with number {number} from the given table."""\n'
        for number in range(9)
    )
    install(
        folder,
        "signals",
        files={
            "signals/__init__.py": '"""Tools for the analysis of signals."""\n',
            "signals/core.py": NUMPY_STYLE,
            "signals/copied.py": copied,
            "signals/broken.py": 'def broken(:\n    """Never parsed."""\n',
            "signals/tests/test_core.py": '"""Tests are not part of the documentation of a package."""\n',
        },
    )
    install(folder, "stores", files={"stores/store.py": GOOGLE_STYLE, "stores/rows.py": rows})
    monkeypatch.syspath_prepend(str(folder))
    return folder


PACKAGES = ("signals", "stores")


def texts(output: Path, folder: str) -> list[str]:
    return [str(text) for text in pq.read_table(output / folder)["text"].to_pylist()]


def queries(output: Path) -> dict[str, str]:
    lines = (output / "task" / "queries.jsonl").read_text().splitlines()
    return {query["_id"]: query["text"] for query in map(json.loads, lines)}


def file_digests(output: Path) -> dict[str, str]:
    files = (path for path in sorted(output.rglob("*")) if path.is_file())
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_query_finds_the_rest_of_its_own_docstring(site: Path, tmp_path: Path) -> None:
    output = tmp_path / "docs"
    summary = write_docs_corpus(output, packages=PACKAGES, num_queries=10)
    documents = {row["id"]: row for row in pq.read_table(output / "documents").to_pylist()}
    qrels = [line.split("\t") for line in (output / "task" / "qrels.tsv").read_text().splitlines()]
    assert qrels[0] == ["query-id", "corpus-id", "score"]
    asked = queries(output)
    found = {asked[query]: documents[document]["text"] for query, document, _ in qrels[1:]}
    assert found["Smooth a signal with a window of the given shape."] == (
        "The window is scaled, so that the sum of its weights is one, and then moved over the signal from "
        "the left to the right, e.g. by steps of 0.5 seconds. See window for the width that is used "
        "by default."
    )
    assert set(found) == {
        "Smooth a signal with a window of the given shape.",
        "Keeps the values of the last request in memory.",
        "Write all values that are still in memory to the disk.",
    }
    assert (summary.num_documents, summary.num_queries) == (len(documents), len(asked)) == (3, 3)


def test_query_sentences_are_absent_from_the_training_sentences(site: Path, tmp_path: Path) -> None:
    shouting = '"""SMOOTH a signal with a window of the given shape!"""\n'
    install(site, "shouts", files={"shouts/__init__.py": shouting})
    output = tmp_path / "docs"
    write_docs_corpus(output, packages=("signals", "stores", "shouts"), num_queries=2)
    held_out = {sentence_key(text) for text in queries(output).values()}
    kept = {sentence_key(text) for text in texts(output, "sentences")}
    assert len(held_out) == 2
    assert not held_out & kept
    assert kept  # the rest of the text is there
    assert sentence_key("Count the values which are waiting in the queue of the store.") in kept


def test_only_prose_reaches_the_corpus(site: Path, tmp_path: Path) -> None:
    write_docs_corpus(tmp_path / "docs", packages=PACKAGES, num_queries=1)
    everything = " ".join(texts(tmp_path / "docs", "sentences") + texts(tmp_path / "docs", "documents"))
    for leftover in ("nobody", "Never seen", "not prose", "``", ":func:", ">>>", "https", "Tests are"):
        assert leftover not in everything
    assert "A store that is full refuses every new value until it has been flushed." in everything
    assert "A small library for the processing of signals on any machine." in everything


def test_numbered_copies_of_a_sentence_stay_twice(site: Path, tmp_path: Path) -> None:
    write_docs_corpus(tmp_path / "docs", packages=PACKAGES, num_queries=1)
    rows = [text for text in texts(tmp_path / "docs", "sentences") if text.startswith("Read the row")]
    assert rows == [f"Read the row with number {number} from the given table." for number in (0, 1)]


def test_private_docstrings_are_for_training_only(site: Path, tmp_path: Path) -> None:
    write_docs_corpus(tmp_path / "docs", packages=PACKAGES, num_queries=1)
    words = "no document that anybody would search for"
    assert any(words in text for text in texts(tmp_path / "docs", "sentences"))
    assert not any(words in text for text in texts(tmp_path / "docs", "documents"))


def test_an_unparsable_file_is_counted_and_named_not_fatal(site: Path, tmp_path: Path) -> None:
    summary = write_docs_corpus(tmp_path / "docs", packages=PACKAGES)
    assert summary.num_unparsable_files == 1
    sources = json.loads((tmp_path / "docs" / "SOURCES.json").read_text())["packages"]
    assert [(row["package"], row["license"], row["num_unparsable_files"]) for row in sources] == [
        ("signals", "MIT", 1),
        ("stores", "MIT", 0),
    ]
    assert sum(row["num_sentences"] for row in sources) == summary.num_sentences


@pytest.mark.parametrize("source", [b'"""\xff"""', b'"""a"""\x00', b'x = """' + b"(" * 5], ids=str)
def test_bytes_that_are_no_python_are_set_aside(tmp_path: Path, source: bytes) -> None:
    path = tmp_path / "bad.py"
    path.write_bytes(source)
    file = SourceFile(path=str(path), module="bad", package="bad", num_bytes=len(source))
    assert parse_files([file]).unparsable == (file,)


def test_one_process_and_two_give_the_same_bytes(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write_docs_corpus(tmp_path / "one", packages=PACKAGES)
    monkeypatch.setattr(docs_corpus, "_BATCH_BYTES", 1)
    monkeypatch.setattr(docs_corpus, "_num_cpus", lambda: 2)
    calls: list[tuple[int, int]] = []
    two = write_docs_corpus(
        tmp_path / "two", packages=PACKAGES[::-1], on_progress=lambda *call: calls.append(call)
    )
    assert file_digests(one.output) == file_digests(two.output)
    assert calls == [(done, one.num_files) for done in range(1, one.num_files + 1)]


def test_the_seed_changes_the_queries_and_nothing_else_decides(site: Path, tmp_path: Path) -> None:
    chosen = set()
    for seed in range(8):
        write_docs_corpus(tmp_path / str(seed), packages=PACKAGES, num_queries=1, seed=seed)
        chosen |= set(queries(tmp_path / str(seed)).values())
    assert len(chosen) > 1


def test_max_documents_keeps_the_answers(site: Path, tmp_path: Path) -> None:
    summary = write_docs_corpus(tmp_path / "docs", packages=PACKAGES, num_queries=1, max_documents=1)
    (document,) = pq.read_table(tmp_path / "docs" / "documents")["id"].to_pylist()
    assert summary.num_documents == 1
    assert f"\t{document}\t1" in (tmp_path / "docs" / "task" / "qrels.tsv").read_text()


def test_a_rerun_does_nothing_and_a_new_version_does_everything(site: Path, tmp_path: Path) -> None:
    output = tmp_path / "docs"
    first = write_docs_corpus(output, packages=PACKAGES)
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    second = write_docs_corpus(output, packages=PACKAGES)
    assert not first.already_done
    assert second.already_done
    assert second.digest == first.digest
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    metadata = site / "stores-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    third = write_docs_corpus(output, packages=PACKAGES)
    assert not third.already_done
    assert third.digest != first.digest  # SOURCES.json names the version
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs", "site-packages"]


@pytest.mark.parametrize("step", ["_write_tables", "_write_task", "_sources"])
def test_a_failure_in_the_middle_leaves_no_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(docs_corpus, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write_docs_corpus(tmp_path / "docs", packages=PACKAGES)
    assert [path.name for path in tmp_path.iterdir()] == ["site-packages"]


def test_a_failed_rebuild_leaves_the_old_corpus(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_docs_corpus(tmp_path / "docs", packages=PACKAGES)
    before = file_digests(tmp_path / "docs")
    monkeypatch.setattr(docs_corpus, "_write_task", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_docs_corpus(tmp_path / "docs", packages=PACKAGES, seed=1)
    assert file_digests(tmp_path / "docs") == before


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
def test_a_foreign_folder_is_refused_and_left_alone(site: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / name).write_text('{"mine": 1}')
    with pytest.raises(ValueError, match="is not a documentation corpus"):
        write_docs_corpus(tmp_path / "docs", packages=PACKAGES)
    assert (tmp_path / "docs" / name).read_text() == '{"mine": 1}'


def test_bad_requests_are_named(site: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'signal' is not installed here\. Did you mean 'signals'"):
        write_docs_corpus(tmp_path / "docs", packages=["signal"])
    with pytest.raises(ValueError, match="expected 1 <= queries <= documents"):
        write_docs_corpus(tmp_path / "docs", packages=PACKAGES, num_queries=5, max_documents=4)
    install(site, "empty", files={"empty.py": '"""No."""\n'})
    with pytest.raises(ValueError, match="no docstring that makes a query"):
        write_docs_corpus(tmp_path / "docs", packages=["empty"])
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    "paragraph",
    [
        "Return the mean, e.g. of an array.|The axis must be an int.",
        "See Smith et al. (2017) for details.|Uses Eq. 3 and Fig. 4 of it.",
        "Load model.safetensors from disk.|Then call torch.nn.Linear on it.",
        "The default is 0.5.|Values above 1.0 raise an error.",
        "This applies to lists, tuples, etc.|Other types are ignored.",
        "If None, i.e. not given, all rows are used (cf. the docs).|Note that v1.2.3 is needed.",
        "Deprecated since version 2.0.|Use foo() instead.",
        "What is this?|It is a test!|Really.",
        "It takes a, b and c.|out_dtype is ignored (see below).|J. R. Smith wrote it.",
        "Finds a root between a and b.|Ridders' method is faster.",
        'It says "stop."|Then it stops.',
    ],
)
def test_sentences_end_where_a_reader_ends_them(paragraph: str) -> None:
    assert split_sentences(paragraph.replace("|", " ")) == paragraph.split("|")


@given(
    st.lists(st.sampled_from(["a.", "e.g.", "The", "x_y", "0.5", "(", ")", '"', "?", "!", "et", "B.", "..."]))
)
def test_splitting_loses_nothing(words: list[str]) -> None:
    paragraph = " ".join(words)
    assert " ".join(split_sentences(paragraph)) == paragraph


@pytest.mark.parametrize(
    "text",
    [
        "Compute x**2 for the given x.",
        "The class ``Foo`` is not clean.",
        "Too short.",
        "timeout_s: The time after which the request fails.",
        "See https://example.org for the details.",
        "Ein Verfahren, das die Werte schnell berechnet hat.",
        "foo bar(baz) qux=1 quux[2] corge.",
        "This has (an open bracket in it.",
        "Die Funktion berechnet \u0434\u043b\u044f \u0432\u0441\u0435\u0445 \u0441\u0442\u0440\u043e\u043a.",
        "word " * 65,
    ],
)
def test_what_is_not_english_prose_is_refused(text: str) -> None:
    assert not is_prose(text)


def test_fragments_are_not_complete_sentences() -> None:
    assert is_complete("It is (quite) done.")
    assert is_complete("out_dtype is ignored by the method.")
    assert not is_complete("easily be extended to other backends.")
    assert not is_complete("For example, the following")


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("abs(x, *, out=None) -> Tensor\n\nComputes it.", ["Computes it."]),
        ("Title\n=====\n\nSome *text* and **more**.", ["Some text and more."]),
        ("Do it::\n\n    code here\n\nThen stop.", ["Do it:", "Then stop."]),
        ("- first item\n  goes on\n- second item", ["first item goes on", "second item"]),
        ("See `the docs <http://x.y>`_ and :class:`~a.b.C`.", ["See the docs and C."]),
        ("Uses the Lanczos method [1]_. It works.", ["Uses the Lanczos method. It works."]),
        ("Shown in [1]_.", ["Shown \ufffd."]),
        ("A [WSGI] server for x[index].", ["A WSGI server for x[index]."]),
        ("=== ===\n a   b\n=== ===\n\nAfter.", ["After."]),
        (".. note:: Mind\n   the gap.\n\n.. math:: x", ["Mind the gap."]),
        ("x : int\n    The value.\n\nEnd.", ["End."]),
    ],
)
def test_layout_is_read_as_a_reader_reads_it(docstring: str, expected: list[str]) -> None:
    assert prose_paragraphs(docstring) == expected


def test_names_and_numbers_do_not_make_a_new_template() -> None:
    assert template_key("Build a FooBar in 3 steps.") == template_key("Build a foo_bar in 12 steps!")
    assert template_key("Build a house.") != template_key("Build a boat.")
