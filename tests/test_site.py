"""`make site`: every page is there, every link leads somewhere, and nothing comes from another host.

What only a browser can say is asked of a headless Chromium, where there is one.
"""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

import browser as chromium
import pytest
from bs4 import BeautifulSoup

from mee_utils.companion.running.notebook_files import notebook_names

ROOT = Path(__file__).parent.parent
NOTEBOOKS = [f"notebooks/{name}.html" for name in notebook_names()]
OTHERS = [path.relative_to(ROOT).with_suffix(".html") for path in sorted(ROOT.glob("figures/*/*.ipynb"))]
CHAPTERS = list(NOTEBOOKS)  # as the navigation has them
NOTEBOOKS += map(str, OTHERS)  # those of other profiles lie beside their figures
BEHIND = [
    f"figures/results/{name}.html" for name in ("ledger", "rules", "published", "bugs", "speed", "referees")
]
CARDS = [f"mee_utils/checkpoints/{name}/README.html" for name in ("small", "real", "smollm2")]
OF_REPOSITORY = ["DATA.html", *CARDS, "CONTRIBUTING.html", "CHANGELOG.html"]
LIBRARY = ["mee_utils/USING.html", "notebooks/profiles/README.html", "mee_utils/README.html"]
LISTED = [*CHAPTERS, "RESULTS.html", *BEHIND, *LIBRARY, *OF_REPOSITORY]
PAGES = ["index.html", *LISTED, *map(str, OTHERS)]
LOADED = {"img": "src", "script": "src", "iframe": "src", "link": "href", "source": "srcset"}
HOST = r"(url\(|@import )['\"]?(https?:)?//"
in_a_browser = pytest.mark.skipif(not chromium.PROGRAM, reason="there is no Chromium here")
pytestmark = [pytest.mark.thorough, pytest.mark.xdist_group("site")]  # built once


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The folder of the site, and what the build had to say."""
    site = tmp_path_factory.mktemp("edition") / "site"
    names = {"PYTHON": sys.executable, "INSTALLED": "pyproject.toml", "SITE": site}
    command = ["make", "site", *(f"{name}={value}" for name, value in names.items())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return site, done.stderr


@pytest.fixture(scope="session")
def pages(built):
    paths = [path for path in built[0].rglob("*.html") if path.parent.name != "_static"]  # there: templates
    paths.remove(built[0] / "explorer.html")  # a page of its own, with a library inside: test_explorer
    return {path: BeautifulSoup(path.read_text("utf-8"), "html.parser") for path in paths}


@pytest.fixture(scope="session")
def tab(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


def test_it_is_built_without_a_warning(built):
    assert built[1] == ""


def test_every_page_is_there_and_in_the_navigation(built, pages):
    site = built[0]
    listed = [link["href"] for link in pages[site / "index.html"].select("nav.bd-links a")]
    assert listed == LISTED
    for page in PAGES:
        assert len(pages[site / page].select("article h1")) == 1, page
    between = pages[site / NOTEBOOKS[1]]
    assert between.select_one("a.left-prev")["href"] == Path(NOTEBOOKS[0]).name
    assert between.select_one("a.right-next")["href"] == Path(NOTEBOOKS[2]).name


@pytest.mark.parametrize("other", [*map(str, OTHERS)])
def test_a_chapter_leads_to_itself_on_other_data(built, pages, other):
    site = built[0]
    chapter = site / "notebooks" / Path(other).name
    if not chapter.exists():
        pytest.skip("this chapter was run on one set of data only")
    versions = [chapter, *(site / each for each in map(str, OTHERS) if Path(each).name == chapter.name)]
    assert site / other in versions
    for page in versions:
        links = [link["href"] for link in pages[page].select_one("article section > p").select("a")]
        targets = [(page.parent / link).resolve() for link in links]
        assert targets == [version.resolve() for version in versions if version != page]


def test_every_link_and_picture_leads_somewhere(pages):
    ids = {path: {tag["id"] for tag in page.find_all(id=True)} for path, page in pages.items()}
    count = 0
    for path, page in pages.items():
        links = [tag[name] for tag in page.find_all() for name in ("href", "src") if tag.has_attr(name)]
        for address in map(urlparse, links):
            if address.scheme in ("http", "https", "data"):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            assert target.is_file(), f"{path}: {address.geturl()}"
            if address.fragment and target in ids:
                assert address.fragment in ids[target] | {""}, f"{path}: {address.geturl()}"
            count += 1
    assert count > 1000


def test_the_explorer_is_one_click_away(built, pages):
    picture = pages[built[0] / "index.html"].select_one('article a[href="explorer.html"] img')
    assert picture is not None and (built[0] / "explorer.html").is_file()


def test_nothing_is_loaded_from_another_host(built, pages):
    for path, page in pages.items():
        for tag in page.find_all(list(LOADED)):
            assert not re.match(r"(https?:)?//", tag.get(LOADED[tag.name], "")), f"{path}: {tag}"
        assert not re.search(HOST, str(page)), path
    for style in built[0].rglob("*.css"):
        assert not re.search(HOST, style.read_text("utf-8")), style


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_its_figures_and_its_code_is_folded(built, pages, name):
    site, _ = built
    stored = (ROOT / name).with_suffix(".ipynb").read_text("utf-8")
    article = pages[site / name].select_one("article")
    pictures = article.select(".cell_output img")
    assert len(pictures) == stored.count('"image/png":') + stored.count('"image/svg+xml":')
    assert all(re.fullmatch(r"[\w ]+", picture["alt"]) for picture in pictures)
    assert len(article.select("table.dataframe")) == stored.count('class=\\"dataframe\\"')
    folded = article.select("details.hide .cell_input")
    assert folded and len(folded) == len(article.select(".cell_input"))
    assert not article.select("details[open]")
    assert "sha256" not in article.text and "$" not in article.select_one("section").p.text


def test_formulas_are_written_out(pages):
    formulas = [formula for page in pages.values() for formula in page.find_all("math")]
    assert len(formulas) > 80
    assert not any("\\" in formula.text for formula in formulas)


@pytest.mark.parametrize("name", ["RESULTS", "figures/results/ledger", "figures/results/rules"])
def test_results_and_the_ledger_are_tables_that_can_be_sorted(built, pages, name):
    tables = pages[built[0] / f"{name}.html"].select("article table")
    written = (ROOT / f"{name}.md").read_text("utf-8")
    assert len(tables) == written.count("\n|:-")
    rows = sum(len(table.select("tbody tr")) for table in tables)
    assert rows == written.count("\n| ") - len(tables)


def test_every_page_can_sort(built, pages):
    for page in PAGES:
        scripts = pages[built[0] / page].find_all("script", src=True)
        assert any("site.js" in tag["src"] for tag in scripts), page


@in_a_browser
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width, dark", [(1280, False), (1280, True), (390, False), (390, True)])
def test_a_page_looks_right_and_nobody_complains(built, tab, name, width, dark):
    tab.open((built[0] / name).as_uri(), width, dark=dark)
    seen = tab.run(LOOK)
    assert not list(tab.complaints())
    assert [address for address in tab.requests() if not address.startswith(("file:", "data:"))] == []
    assert seen.pop("dark") == dark and seen.pop("wide") <= width
    assert seen == {"broken": [], "narrow": [], "cut": [], "pale": []}


LOOK = r"""(() => {
  const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = (colour) => colour.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length && (colour[3] ?? 1) > 0.5) return colour;
    }
    return [255, 255, 255];
  };
  const pale = (node) => {
    const [a, b] = [rgb(getComputedStyle(node).color), behind(node)].map(light).sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  };
  const article = document.querySelector("article"), all = (what) => [...article.querySelectorAll(what)];
  document.querySelectorAll("details").forEach((details) => (details.open = true));
  const words = (node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  const read = "article :not(.headerlink), .bd-links *, .page-toc *";
  const shown = [...document.querySelectorAll(read)].filter(words).filter((node) => node.checkVisibility());
  const pictures = all(".cell_output img, p img");
  const boxed = (node) => node.closest("pre, .pst-scrollable-table-container, .output.text_html, math");
  return {
    dark: document.documentElement.dataset.theme === "dark",
    wide: document.documentElement.scrollWidth,
    broken: pictures.filter((image) => !image.naturalWidth).map((image) => image.src),
    narrow: pictures.filter((image) => image.clientWidth < image.closest("section").clientWidth)
      .map((image) => image.src),
    cut: all("*").filter((node) => !boxed(node) && node.checkVisibility() &&
      node.getBoundingClientRect().right > innerWidth + 1).map((node) => node.outerHTML.slice(0, 80)),
    pale: [...new Set(shown.filter(pale).map((node) => node.className + ": " + node.textContent))],
  };
})()"""


@in_a_browser
def test_a_click_sorts_by_number_or_by_text(built, tab):
    tab.open((built[0] / "figures/results/speed.html").as_uri())
    column = """(name, clicks) => {
      const heads = [...document.querySelectorAll("article th")], text = (cell) => cell.textContent.trim();
      const head = heads.find((head) => text(head) === name), table = head.closest("table");
      for (let click = 0; click < clicks; click++) head.click();
      return [head.ariaSort, [...table.tBodies[0].rows].map((row) => text(row.cells[head.cellIndex]))];
    }"""
    order, numbers = tab.run(f"({column})('mini', 1)")
    assert order == "ascending" and len(set(numbers)) > 5

    def first_number(cell):
        return float(cell.split()[0].replace(",", ""))

    assert numbers == sorted(numbers, key=first_number)
    order, again = tab.run(f"({column})('mini', 1)")
    assert order == "descending" and again == sorted(numbers, key=first_number, reverse=True)
    tasks = tab.run(f"({column})('task', 1)")[1]
    assert tasks == sorted(tasks) and len(set(tasks)) > 1


@in_a_browser
def test_the_search_finds_a_chapter_in_pages_opened_as_files(built, tab):
    tab.open((built[0] / "search.html").as_uri() + "?q=monotonicity")
    results = """new Promise((done) => { const look = () => {
      const links = [...document.querySelectorAll("#search-results li a")].map((link) => link.href);
      links.length ? done(links) : setTimeout(look, 100); }; look(); })"""
    assert any("01_monotonicity.html" in link for link in tab.run(results))
    assert not list(tab.complaints())


@in_a_browser
def test_code_unfolds_and_figures_open(built, tab):
    tab.open((built[0] / NOTEBOOKS[0]).as_uri())
    seen = "document.querySelector('.cell_input').checkVisibility()"
    assert tab.run(f"[{seen}, document.querySelector('.cell summary').click(), {seen}]") == [
        False,
        None,
        True,
    ]
    picture = "document.querySelector('article .cell_output img[src$=png]')"
    tab.events.clear()
    address = tab.run(f"{picture}.click(), {picture}.src")
    assert re.match(r"file:.*\.png$", address)
    tab.loaded()
    assert tab.run("[location.href, document.images[0].naturalWidth > 300]") == [address, True]
