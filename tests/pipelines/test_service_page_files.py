"""The page's files: they need nothing from elsewhere, label what they ask for, and mark the query's words."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from importlib.resources import files

import pytest


class Page(HTMLParser):
    """What a page refers to and labels."""

    def __init__(self):
        super().__init__()
        self.links, self.fields, self.labels, self.ids, self.live = [], [], set(), set(), set()
        self._in_label = 0

    def handle_starttag(self, tag, pairs):
        attributes = dict(pairs)
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        self.ids.add(attributes.get("id"))
        if tag == "label":
            self._in_label += 1
            self.labels.add(attributes.get("for"))
        if tag in ("input", "select", "textarea"):
            self.fields.append((attributes.get("id"), bool(self._in_label)))
        if "aria-live" in attributes:
            self.live.add(attributes.get("id"))

    def handle_endtag(self, tag):
        self._in_label -= tag == "label"


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_needs_nothing_from_elsewhere_and_labels_every_field(client, path):
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    page = Page()
    page.feed(answer.text)
    for link in page.links:
        if not link.startswith("#"):
            assert "//" not in link
            assert client.get(f"/{link}".replace("/.", "/")).status_code == 200, link
    for name, is_inside_label in page.fields:
        assert is_inside_label or name in page.labels, name
    assert page.live
    assert "<script>" not in answer.text
    assert "style=" not in answer.text


def test_no_file_of_the_page_names_another_host(client):
    for file in files("pipelines.service").joinpath("page").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text
        assert "https:" not in text
        assert "innerHTML" not in text


def test_the_pages_script_uses_ids_that_the_page_has(client):
    page = Page()
    page.feed(client.get("/").text)
    script = client.get("/page/page.js").text
    used = set(re.findall(r'getElementById\("([\w-]+)"\)', script))
    assert used
    assert used <= page.ids


MARKED = [
    ("How do I read the files?", "Read a file. Reading <b>Files</b>", ["Read", "file", "Files"]),
    ("the", "the end", ["the"]),
    ("Zürich", "in zürich, Zürichs", ["zürich", "Zürichs"]),
    ("classes", "A class of clas", ["class"]),
    ("(a+b)*", "a+b", ["a", "b"]),
]


def test_the_page_marks_the_words_of_the_query_and_keeps_every_character(client):
    """Runs the page's own script where there is node; everywhere it must be the one that is served."""
    script = client.get("/page/terms.js").text
    assert "module.exports" in script
    code = script + (
        "\nconst given = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(given.map(([q, t]) => markedParts(t, queryWords(q)))));"
    )
    node = shutil.which("node")
    if node is None:
        return
    given = json.dumps([[query, text] for query, text, _ in MARKED])
    done = subprocess.run([node, "-e", code], input=given, capture_output=True, text=True, check=True)
    for parts, (_, text, marked) in zip(json.loads(done.stdout), MARKED, strict=True):
        assert "".join(part for part, _ in parts) == text
        assert [part for part, is_marked in parts if is_marked] == marked
