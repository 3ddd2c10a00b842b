"""The built documentation site: every link leads somewhere, and a real browser shows it, also as narrow as a phone.

`make docs` builds it; without it, these tests say so.
"""

import functools
import html.parser
import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
from pathlib import Path

import pytest

SITE = Path(__file__).parent.parent / "build" / "docs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE = 390

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: `make docs`")

PROBE = """
<!doctype html><meta charset="utf-8"><body><script>
const opened = (address, width) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.onload = () => done(frame);
  frame.src = address;
  document.body.append(frame);
});
const rest = time => new Promise(done => setTimeout(done, time));
(async () => {
  const seen = {wide: [], broken: [], found: []};
  for (const page of PAGES) {
    const frame = await opened(page, WIDTH);
    const shown = frame.contentDocument;
    if (shown.documentElement.scrollWidth > WIDTH) seen.wide.push([page, shown.documentElement.scrollWidth]);
    for (const image of shown.images) {
      image.loading = "eager";
      await image.decode().catch(() => seen.broken.push([page, image.src]));
    }
    frame.remove();
  }
  const search = await opened("search.html?q=thermostat", 1200);
  for (let i = 0; i < 50 && !seen.found.length; i++) {
    await rest(100);
    seen.found = [...search.contentDocument.querySelectorAll("ul.search a")].map(link => link.getAttribute("href"));
  }
  await fetch("/seen", {method: "POST", body: JSON.stringify(seen)});
})();
</script></body>
"""


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self):
        super().__init__()
        self.links, self.anchors = [], set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [
            given[name] for name in ("href", "src") if given.get(name) and tag in ("a", "img", "script", "link")
        ]
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}


def pages():
    return sorted(path for path in SITE.rglob("*.html") if not path.relative_to(SITE).parts[0].startswith("_"))


@functools.cache
def page(path):
    parsed = Page()
    parsed.feed(path.read_text())
    return parsed


def leads_somewhere(path, link):
    target = urllib.parse.urlsplit(link)
    if target.scheme or target.netloc:
        return True
    file = (path.parent / urllib.parse.unquote(target.path)).resolve() if target.path else path
    if not file.is_file():
        return False
    anchor = urllib.parse.unquote(target.fragment) if file.suffix == ".html" else ""
    return not anchor or anchor in page(file).anchors


def test_every_link_of_the_site_leads_to_a_file_and_an_anchor_of_it():
    broken = [(path.name, link) for path in pages() for link in page(path).links if not leads_somewhere(path, link)]
    assert broken == []


def test_the_site_asks_no_other_host_for_anything():
    asked = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(?:https?:)?//""")
    assert [path.name for path in pages() if asked.search(path.read_text())] == []


def test_every_page_of_the_documentation_is_on_the_site():
    docs = Path(__file__).parent.parent / "docs"
    sources = {path.relative_to(docs).with_suffix(".html") for path in docs.rglob("*.md")}
    assert {path.relative_to(SITE) for path in pages()} >= sources


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """What the probe saw of all pages, and what Chromium wrote to its console."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: `apt-get install chromium` to have the site tested in it")
    folder = tmp_path_factory.mktemp("browser")
    shutil.copytree(SITE, folder / "site")
    names = [path.relative_to(SITE).as_posix() for path in pages()]
    probe = PROBE.replace("PAGES", json.dumps(names)).replace("WIDTH", str(PHONE))
    (folder / "site" / "probe.html").write_text(probe)
    with (
        Server(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder / "site"))) as server,
        (folder / "console").open("w") as console,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
        command += ["--disable-background-networking", f"--user-data-dir={folder}/profile", "--enable-logging=stderr"]
        command += ["--window-size=1300,900", "--remote-debugging-port=0"]
        address = f"http://127.0.0.1:{server.server_address[1]}/probe.html"
        with subprocess.Popen([*command, address], stderr=console, stdout=subprocess.DEVNULL) as chromium:
            there = server.told.wait(timeout=240)
            chromium.terminate()
        server.shutdown()
    text = (folder / "console").read_text(errors="replace")
    assert there, text[-2000:]
    return server.seen, [line for line in text.splitlines() if "CONSOLE" in line]


class Server(http.server.ThreadingHTTPServer):
    """Serves the site, and takes down what the probe tells."""

    seen: dict

    def __init__(self, *given):
        super().__init__(*given)
        self.told = threading.Event()


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
        server = self.server
        assert isinstance(server, Server)
        server.seen = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        server.told.set()

    def log_message(self, format, *args):
        pass


def test_in_a_browser_no_page_scrolls_sideways_on_a_phone(browser):
    assert browser[0]["wide"] == []


def test_in_a_browser_every_picture_is_shown(browser):
    assert browser[0]["broken"] == []


def test_in_a_browser_the_search_finds_the_tutorial_by_a_word_of_it(browser):
    assert any(link.startswith("tutorial.html") for link in browser[0]["found"])


def test_in_a_browser_nothing_is_written_to_the_console(browser):
    assert browser[1] == []
