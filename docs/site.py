"""The documentation as a site: ``make site`` writes it into site/, to be opened or served from anywhere.

zensical, the successor of Material for MkDocs, makes the pages; search and everything else works without a
network. Its support of mkdocstrings is preliminary, so `docs.api_reference` writes the reference.

Pages keep the links that they have in the repository. Here those to files that are no page become plain text.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs.api_reference import api_reference

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
_SOURCES = ROOT / "build" / "site"

NAVIGATION: dict[str, dict[str, str]] = {
    "Begin": {
        "README.md": "Overview", "docs/install.md": "Install", "docs/migration.md": "From Spark's connector",
        "docs/testing.md": "Test your application",
    },
    "Spark": {"docs/datasource.md": "Data source", "docs/arrow.md": "Arrow without Spark"},
    "Recipes": {
        "docs/recipes/cron-and-systemd.md": "cron and systemd", "docs/recipes/airflow.md": "Airflow",
        "docs/recipes/dbt.md": "dbt", "docs/recipes/spark-submit.md": "spark-submit",
        "docs/recipes/kubernetes.md": "Kubernetes", "docs/recipes/databricks.md": "Databricks",
        "docs/recipes/emr.md": "Amazon EMR, Glue", "docs/recipes/dataproc.md": "Dataproc",
    },
    "Loads": {
        "docs/loads.md": "Loads", "docs/stores.md": "A nightly load", "docs/guarantees.md": "Guarantees",
        "docs/ledger.md": "Ledger", "docs/scale.md": "Scale",
    },
    "Broker": {
        "docs/operations.md": "Operations", "docs/security.md": "Security",
        "docs/compatibility.md": "Compatibility",
    },
    "Clients": {
        "docs/clients.md": "Producer and Consumer", "docs/classic-clients.md": "Classic API",
        "docs/kafka07.md": "Kafka 0.7",
    },
    "Reference": {
        "docs/cli.md": "Command line", "docs/configuration.md": "Configuration", "docs/api.md": "Python API",
        "docs/protocol.md": "Protocol", "docs/formats.md": "Formats", "docs/stability.md": "Stability",
        "CHANGELOG.md": "Changelog",
    },
    "Inside": {
        "docs/design.md": "Design", "docs/benchmarks.md": "Benchmarks", "CONTRIBUTING.md": "Contributing",
        "SECURITY.md": "Report a weakness",
    },
}  # fmt: skip
"""The pages by chapter, as they lie in the repository, with their titles."""

_TITLES = {page: title for chapter in NAVIGATION.values() for page, title in chapter.items()}

BESIDE = [
    *(f"docs/adr/{path.name}" for path in sorted((ROOT / "docs" / "adr").glob("*.md"))),
    *(f"benchmarks/results/{path.name}" for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))),
]
"""Pages that others link to, without a place of their own in the navigation."""

_CONFIG = """\
[project]
site_name = "pyspark-kafkalog"
site_description = "Kafka topics in Spark, in pure Python, and a small Kafka broker"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [
{nav}]

[project.theme]
language = "en"
font = false
features = [
  "content.code.copy", "navigation.footer", "navigation.path", "navigation.sections", "navigation.top",
  "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Dark"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Light"

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}
toc.permalink = true
toc.slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
"""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")


def _place(page: str) -> str:
    """Where a page lies among the site's sources."""
    return "index.md" if page == "README.md" else page.removeprefix("docs/")


def pages() -> dict[str, str]:
    """The site's sources: the path of each page among them, and its text."""
    ours = [page for chapter in NAVIGATION.values() for page in chapter] + BESIDE
    found = {}
    for page in ours:
        text = api_reference() if page == "docs/api.md" else (ROOT / page).read_text(encoding="utf-8")
        found[_place(page)] = _for_python_markdown(_relinked(text, page, set(ours)))
    return found


def _relinked(text: str, page: str, ours: set[str]) -> str:
    here = posixpath.dirname(page)

    def relinked(match: re.Match[str]) -> str:
        image, words, target, anchor = match.groups()
        led = posixpath.normpath(posixpath.join(here, target))
        if not image and led not in ours:
            return words
        if words == posixpath.basename(target):
            words = _TITLES.get(led, words)
        place = posixpath.relpath(_place(led), posixpath.dirname(_place(page)) or ".")
        return f"{image}[{words}]({place}{anchor or ''})"

    return _LINK.sub(relinked, text)


def _for_python_markdown(text: str) -> str:
    """A list may follow its paragraph at once on GitHub; Python-Markdown wants an empty line between them."""
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        is_code ^= line.lstrip().startswith("```")
        is_item = re.match(r"([*-]|\d+\.) ", line) is not None
        follows_text = bool(lines) and lines[-1] != "" and re.match(r"([*-]|\d+\.) |  ", lines[-1]) is None
        if is_item and follows_text and not is_code:
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def build(site: Path = SITE, sources: Path = _SOURCES) -> None:
    """Write the whole site into ``site``, which is emptied first."""
    for directory in (site, sources):
        shutil.rmtree(directory, ignore_errors=True)
    for place, text in pages().items():
        file = sources / "pages" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", sources / "pages" / "images")
    (sources / "zensical.toml").write_text(_CONFIG.format(nav=_navigation()), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean"]
    ran = subprocess.run(command, cwd=sources, capture_output=True, text=True, check=False)
    if ran.returncode or "warning" in (ran.stdout + ran.stderr).lower():
        sys.exit(f"the site was not built:\n{ran.stdout}{ran.stderr}")
    shutil.move(sources / "site", site)  # zensical writes below its sources only


def _navigation() -> str:
    """The chapters, in TOML."""
    lines = []
    for chapter, titles in NAVIGATION.items():
        entries = [f'{{ "{title}" = "{_place(page)}" }}' for page, title in titles.items()]
        lines.append(f'  {{ "{chapter}" = [{", ".join(entries)}] }},\n')
    return "".join(lines)


if __name__ == "__main__":
    build()
    sys.stdout.write(f"{SITE / 'index.html'}\n")
