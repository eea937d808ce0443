"""The site has what the pages say, and nothing in it leads nowhere."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import kafkalog_broker
import pyspark_kafkalog as kafkalog
from docs.api_reference import GROUPS, api_reference
from docs.site import NAVIGATION, build
from pyspark_kafkalog import decoding

ROOT = Path(__file__).parents[3]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.paragraphs: list[str] = []
        self._is_paragraph = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("script", "img") and given.get("src"):
            self.resources.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.resources.append(str(given["href"]))
        if tag == "p":
            self._is_paragraph = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self._is_paragraph = False

    def handle_data(self, data: str) -> None:
        if self._is_paragraph:
            self.paragraphs[-1] += data


def test_every_page_has_a_place_in_the_navigation() -> None:
    placed = {page for chapter in NAVIGATION.values() for page in chapter}
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("docs/adr/")} <= placed


def test_the_reference_has_each_public_name_in_one_chapter() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    errors = set(kafkalog.__all__) - set(grouped) - {"__version__"}
    assert [name for name in errors if not issubclass(getattr(kafkalog, name), Exception)] == []


def test_a_signature_is_shown_as_it_is_written() -> None:
    assert """```python
load(
    spark: SparkSession | None,
    *,
    name: str,
    offsets: str | os.PathLike[str],
    on_pending: str = 'replay',
    receipts: bool = True,
    **options: object,
) -> Load
```""" in api_reference()


@pytest.mark.long("builds the site")
def test_the_site_works_without_a_network_and_each_link_leads_somewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build(site, tmp_path / "sources")
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 50
    lost = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are for any depth
        assert [each for each in page.resources if urlsplit(each).netloc] == []
        for link in [*page.links, *page.resources]:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https"):
                continue
            led = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            led = led / "index.html" if led.is_dir() else led
            if not led.exists() or (
                parts.fragment and led in pages and unquote(parts.fragment) not in pages[led].ids
            ):
                lost.append((path.name, link))
        # What should be a list, a table or a heading, and is not.
        assert [text for text in page.paragraphs if text.startswith(("* ", "- ", "| ", "#"))] == [], path
    assert lost == []
    names = {*kafkalog.__all__, *decoding.__all__, *kafkalog_broker.__all__} - {"__version__"}
    assert {name.lower() for name in names} <= pages[site / "api.html"].ids
    assert "receipt" in json.dumps(json.loads((site / "search.json").read_text(encoding="utf-8")))
