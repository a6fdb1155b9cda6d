"""The search page in a real browser: typed, walked by keys, compared, filtered, at two widths."""

import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest
import uvicorn
from browser import Browser, find_browser
from service_builders import make_service


@pytest.fixture(scope="module")
def address(engine):
    """The service of a tiny workspace, on a free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(64)
        server = uvicorn.Server(uvicorn.Config(make_service(engine), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [one]})
        thread.start()
        yield f"http://127.0.0.1:{one.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def texts(browser, selector):
    return browser.value(f"[...document.querySelectorAll('{selector}')].map((e) => e.textContent)")


def test_a_person_searches_compares_filters_and_asks_for_more(address, tmp_path):
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium on the path: the page was only checked for being served and parsed")
    with Browser(program, tmp_path / "profile") as browser:
        browser.size(1280, 1000)
        browser.open(f"{address}/")
        browser.wait("document.getElementById('live')?.textContent.includes('120 documents')")
        assert browser.value("document.activeElement.id") == "query"
        browser.type("read a file")
        browser.press("Enter")
        browser.wait("document.querySelectorAll('.hit').length === 10")
        assert browser.value("document.getElementById('status').textContent").startswith("10 results in")
        assert {"read", "file"} <= {text.lower().rstrip("s") for text in texts(browser, "mark")}
        assert browser.value("location.search") == "?q=read+a+file&mode=hybrid&k=10"

        browser.press("ArrowDown")
        browser.press("ArrowDown")
        second = browser.value("document.querySelectorAll('article')[1].dataset.id")
        assert browser.value("document.activeElement.dataset.id") == second
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert browser.value(outline) == "solid"
        label = browser.value("document.activeElement.getAttribute('aria-label')")
        assert label.startswith("2. "), "a reader of screens hears which result it is"
        browser.press("m")
        browser.wait("document.querySelector('.ranking h2')?.textContent.startsWith('Like')")
        assert browser.value("document.activeElement.id") == "results", "the focus is not lost"
        assert second not in browser.value(
            "[...document.querySelectorAll('article')].map((e) => e.dataset.id)"
        )
        browser.press("/")
        assert browser.value("document.activeElement.id") == "query"

        browser.value("document.querySelector('[value=compare]').click()")
        browser.wait("document.querySelectorAll('.ranking').length === 3")
        assert texts(browser, ".ranking h2") == ["Meaning (dense)", "Words (BM25)", "Both (hybrid)"]
        browser.value("document.getElementById('filter').value = 'topic = colour and size < 50'")
        browser.value("document.getElementById('query').value = 'red'")
        browser.press("Enter")
        browser.wait("document.querySelector('.columns')?.textContent.includes('topic: colour')")
        assert all("topic: colour" in text for text in texts(browser, ".columns"))
        browser.picture(_picture(tmp_path, "wide"))
        assert _fits(browser)

        browser.size(390, 844)
        browser.open(f"{address}/?q=red&mode=compare&filter=topic+%3D+colour")
        browser.wait("document.querySelectorAll('.ranking').length === 3")
        assert _fits(browser)
        browser.picture(_picture(tmp_path, "narrow"))
        browser.value("document.getElementById('filter').value = 'nonsense = 1'")
        browser.value("document.getElementById('form').requestSubmit()")
        browser.wait("document.getElementById('status').textContent.includes(\"no column 'nonsense'\")")
        assert texts(browser, ".hit") == []

        # Chromium logs the refused request of the bad filter as an error; nothing else may be there.
        assert [error for error in browser.errors if "422" not in error] == []
        browser.open(f"{address}/docs")
        browser.wait("document.querySelectorAll('section').length >= 7")
        assert _fits(browser)


def test_the_page_and_its_scripts_are_served_and_can_be_parsed(address, tmp_path):
    for name in ("", "page/page.js", "page/terms.js", "page/docs.js", "page/page.css", "docs"):
        with urllib.request.urlopen(f"{address}/{name}") as answer:
            content = answer.read()
        assert content
        if name.endswith(".js") and shutil.which("node"):
            script = tmp_path / Path(name).name
            script.write_bytes(content)
            subprocess.run([shutil.which("node"), "--check", str(script)], check=True)


def _fits(browser):
    """Nothing is wider than the window."""
    return browser.value("document.documentElement.scrollWidth <= window.innerWidth")


def _picture(tmp_path, name):
    """Where a screenshot goes: to look at, if TSDAE_SCREENSHOTS names a folder."""
    return Path(os.environ.get("TSDAE_SCREENSHOTS", str(tmp_path))) / f"page-{name}.png"
