import dataclasses
import html
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from apdo.errors import InvalidInput
from apdo.experiment.records import Records
from apdo.report import comparison, page, plot
from apdo.report.claims import Claim
from apdo.report.comparison import Target
from apdo.report.runs import Run
from apdo.report.statistics import interquartile_mean

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)


def run(algorithm="apdo", seeds=3, epochs=8, multiplier=True, **changes):
    """A made-up run, in memory."""
    draw = np.random.default_rng(len(algorithm))
    metrics = {"return": draw.normal(10, 2, size=(seeds, epochs)), "cost": draw.uniform(size=(seeds, epochs, 1))}
    if multiplier:
        metrics["multiplier"] = draw.uniform(size=(seeds, epochs, 1))
    description = {
        "format": 1,
        "algorithm": algorithm,
        "environment": "point-gather",
        "config": {"algorithm": algorithm, "settings": {"epochs": epochs, "seeds": seeds, "seed": 0}},
        "problem": {"limits": [0.2], "cost_names": ["bombs"]},
        "batch": 100,
        "epochs": epochs,
        "seeds": list(range(seeds)),
        "adjustment_epoch": 2 if algorithm == "apdo" else None,
        "versions": {"jax": "0.10"},
        "device": "cpu: cpu",
        "commit": "abc",
        "status": "finished",
    }
    return Run(Path("runs/one"), description | changes, metrics, tuple(range(seeds)), np.arange(epochs))


def document(runs=None, note=""):
    """A page about runs by the titles of their arms."""
    runs = runs or {"APDO": run(), "CPO": run("cpo", multiplier=False)}
    fixed = {v: run(f"fixed{v}", seeds=3) for v in (8.0, 12.0)}
    for value, one in fixed.items():
        one.metrics["cost"] = one.metrics["cost"] * 0.01 + 0.2 - 0.03 * (value - 10)
    optimal = comparison.optimal_multiplier(fixed, last=4)
    return page.Document(
        title="A <title> & more",
        note=note,
        arms={t.lower(): page.Arm(t, r, comparison.summarise(r, Target(), optimal)) for t, r in runs.items()},
        figures=(
            page.Figure("fig1", "Figure 1", "Everything.", tuple(t.lower() for t in runs)),
            page.Figure("settled", "Settled", "The cost.", tuple(t.lower() for t in runs), settles=True),
        ),
        target=Target(),
        optimal=optimal,
        claims=(Claim("It is <fast>.", "one; two", "holds", "holds"),),
        facts=(("command", "apdo reproduce all --seeds 3"), ("device", "cpu")),
    )


def embedded(text):
    """The data of the page's script."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


class Elements(html.parser.HTMLParser):
    """Every attribute of every element, and the elements' nesting."""

    def __init__(self, text):
        super().__init__()
        self.attributes, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_refers_to_nothing_outside_itself():
    text = page.render(document())
    assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]{2,}|@import|url\(", text)
    links = [value for _, name, value in Elements(text).attributes if name in ("src", "href", "data", "action")]
    assert links == ["data:,"]
    assert "default-src 'none'" in text


def test_every_element_is_closed():
    assert Elements(page.render(document(note="a note"))).open == []


def test_the_embedded_curves_are_the_runs():
    one = run()
    arm = embedded(page.render(document({"APDO": one})))["arms"]["apdo"]
    curve = arm["curves"]["return"][0]
    np.testing.assert_allclose(curve["seeds"], one.metrics["return"], rtol=1e-3)
    np.testing.assert_allclose(curve["middle"], interquartile_mean(one.metrics["return"]), rtol=1e-3)
    np.testing.assert_allclose(arm["curves"]["cost"][0]["seeds"], one.metrics["cost"][..., 0], rtol=1e-3)
    assert arm["epochs"] == list(range(1, 9))
    assert arm["adjustment"] == 3
    assert arm["limits"] == [0.2]


def test_long_curves_are_thinned_and_keep_their_ends():
    one = run(epochs=1001)
    arm = embedded(page.render(document({"APDO": one})))["arms"]["apdo"]
    assert len(arm["epochs"]) == page.POINTS
    assert (arm["epochs"][0], arm["epochs"][-1]) == (1, 1001)
    assert arm["curves"]["return"][0]["seeds"][0][-1] == pytest.approx(one.metrics["return"][0, -1], rel=1e-3)


def test_a_page_of_the_whole_study_stays_below_three_megabytes():
    # Eighteen arms, of which one is measured, with sixteen seeds.
    one, two = (
        len(page.render(document(dict.fromkeys(names, run(seeds=16, epochs=300)))).encode()) for names in ("a", "ab")
    )
    assert one + 17 * (two - one) < 3e6


def test_nan_is_embedded_as_null():
    one = run()
    one.metrics["return"][1, 2] = np.nan
    curve = embedded(page.render(document({"APDO": one})))["arms"]["apdo"]["curves"]["return"][0]
    assert curve["seeds"][1][2] is None
    assert curve["middle"][2] is None


def test_text_cannot_break_out_of_the_page():
    evil = "</script><img src=x onerror=alert(1)>"
    text = page.render(document({evil: run()}))
    assert "<img" not in text
    assert embedded(text)["arms"][evil.lower()]["title"] == evil
    assert "<title>A &lt;title&gt; &amp; more</title>" in text


def test_the_results_are_json_with_never_in_words(tmp_path):
    one = run()
    one.metrics["return"][:] = 0.0
    results = json.loads(page.write_results(document({"APDO": one}), tmp_path / "results.json").read_text())
    assert results["arms"]["apdo"]["summary"]["to_target"]["value"] == "never"
    assert results["arms"]["apdo"]["summary"]["reached"] == 0


def written(folder, algorithm="pdo", first=0, dual_step=0.1, environment="point-gather"):
    """A run folder."""
    seeds = [first, first + 1]
    description = run(algorithm).description | {
        "environment": environment,
        "seeds": seeds,
        "config": {"algorithm_config": {"dual_step": dual_step}, "settings": {"seed": first, "seeds": 2}},
        "started": "2026-01-01T00:00:00+00:00",
    }
    record = Records(folder, description)
    rows = [{"epoch": e, "return": 1.0 * s, "cost": [0.1], "multiplier": [1.0]} for e in range(6) for s in seeds]
    record.append([row | {"seed": seeds[i % 2]} for i, row in enumerate(rows)])
    record.close("finished", finished="2026-01-01T00:01:30+00:00", seconds=20.0)
    return folder


def test_runs_that_differ_only_in_their_seeds_are_one_arm(tmp_path):
    written(tmp_path / "a")
    written(tmp_path / "b", first=2)
    written(tmp_path / "c", dual_step=0.5)
    found = page.of_runs([tmp_path], "apdo report")
    assert [arm.run.seeds for arm in found.arms.values()] == [(0, 1, 2, 3), (0, 1)]
    assert [arm.title for arm in found.arms.values()] == ["pdo dual_step=0.1", "pdo dual_step=0.5"]
    assert dict(found.facts)["wall time of all runs"] == "270 s"


def test_each_environment_has_its_own_figure_with_its_algorithms_together(tmp_path):
    names = [("pdo", "point-gather"), ("cpo", "point-gather"), ("pdo", "elsewhere")]
    folders = [written(tmp_path / str(i), a, environment=e) for i, (a, e) in enumerate(names)]
    found = page.of_runs(folders, "apdo report")
    assert [(figure.title, len(figure.arms)) for figure in found.figures] == [("elsewhere", 1), ("point-gather", 2)]
    assert found.target is None
    assert "return 11" not in page.render(found)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="holds none"):
        page.of_runs([tmp_path], "apdo report")
    with pytest.raises(InvalidInput, match="there is no run folder"):
        page.of_runs([tmp_path / "missing"], "apdo report")


# In a browser. What it does is written into the page, which is then read back.

PROBE = """
<script>
const panel = i => document.querySelectorAll('[data-figure="fig1"] .panel')[i];
const arms = i => [...panel(i).querySelectorAll("path.middle")].map(path => path.dataset.arm);
const buttons = document.querySelectorAll('[data-figure="fig1"] .legend button');
const seen = {before: arms(0), multiplier: arms(2), seeds: panel(0).querySelectorAll("path.seed").length};
seen.limits = panel(1).querySelectorAll("line.limit").length;
seen.bands = document.querySelectorAll("rect.band").length;
seen.marks = panel(0).querySelectorAll("line.mark").length;
seen.heading = panel(2).querySelector("h3").textContent;
const svg = panel(0).querySelector("svg"), box = svg.getBoundingClientRect();
const at = {clientX: box.right - 12 / 420 * box.width, clientY: box.top + 50};
svg.dispatchEvent(new PointerEvent("pointermove", at));
seen.tip = panel(0).querySelector(".tip").textContent;
seen.tipShown = !panel(0).querySelector(".tip").hidden;
svg.dispatchEvent(new PointerEvent("pointerleave", {}));
seen.tipGone = panel(0).querySelector(".tip").hidden;
buttons[0].click();
seen.after = arms(0);
seen.pressed = buttons[0].getAttribute("aria-pressed");
buttons[0].click();
seen.again = arms(0);
buttons[buttons.length - 1].click();
seen.withoutSeeds = panel(0).querySelectorAll("path.seed").length;
seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
document.documentElement.dataset.seen = JSON.stringify(seen);
</script>
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Opens a page in Chromium; returns what the probe saw, and what was written to the console."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: `apt-get install chromium` to have the page tested in it")

    def opened(text, width=1300):
        folder = tmp_path_factory.mktemp("browser")
        file = folder / "page.html"
        file.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
        quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={folder}/profile"]
        command += ["--enable-logging=stderr", f"--window-size={width},900", "--virtual-time-budget=2000", "--dump-dom"]
        done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120, check=False)
        attribute = re.search(r'data-seen="([^"]*)"', done.stdout)
        assert attribute is not None, done.stderr
        return json.loads(html.unescape(attribute[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return opened


@pytest.fixture(scope="module")
def seen(browser):
    return browser(page.render(document()))


def test_in_a_browser_the_page_draws_its_curves_without_an_error(seen):
    found, console = seen
    assert console == []
    assert found["before"] == ["0", "1"]
    assert found["seeds"] == 6
    assert found["limits"] == 1
    assert found["marks"] == 1
    assert found["bands"] == 2


def test_in_a_browser_an_arm_without_a_multiplier_is_named(seen):
    found, _ = seen
    assert found["multiplier"] == ["0"]
    assert "none: CPO" in found["heading"]


def test_in_a_browser_the_pointer_shows_the_values(seen):
    found, _ = seen
    last = interquartile_mean(run().metrics["return"])[-1]
    assert found["tipShown"]
    assert found["tipGone"]
    assert "after 8 epochs 800 samples" in found["tip"]
    assert f"APDO {last:.3g}" in found["tip"]


def test_in_a_browser_the_legend_switches_arms_off_and_on(seen):
    found, _ = seen
    assert found["after"] == ["1"]
    assert found["pressed"] == "false"
    assert found["again"] == ["0", "1"]
    assert found["withoutSeeds"] == 0


def test_in_a_browser_a_narrow_page_does_not_scroll_sideways(browser):
    found, console = browser(page.render(document(note="MINIATURE: a note")), width=500)
    assert found["wide"]
    assert console == []


def test_in_a_browser_hostile_names_stay_text(browser):
    found, console = browser(page.render(document({"</script><img src=x onerror=alert(1)>": run(), "B": run("cpo")})))
    assert found["before"] == ["0", "1"]
    assert console == []


def test_a_picture_has_the_band_of_the_optimal_multiplier_in_its_last_panel_alone():
    picture = plot.figure([run(), run("cpo")], band=(9.0, 11.0), names=["one", "two"])
    bands = [[patch.get_label() for patch in panel.patches if "λ*" in str(patch.get_label())] for panel in picture.axes]
    assert [len(labels) for labels in bands[:3]] == [0, 0, 1]
    legend = [text.get_text() for text in picture.legends[0].get_texts()]
    assert legend[:2] == ["one", "two"]
    assert any("λ*" in text for text in legend)


def best_of(seed, known=True, **changes):
    """What a run tells of a seed's best policy."""
    told = {"seed": seed, "epoch": 5 + seed, "return": 9.0 + seed, "return_error": 0.25}
    return told | {"cost": [0.15], "cost_error": [0.02], "known": known} | changes


def test_the_best_policies_stand_on_the_page_by_arm_and_by_seed():
    one = run(best=[best_of(0), best_of(1, known=False), best_of(2)])
    text = page.render(document({"APDO": one, "PD-DDPG": run("pd-ddpg")}))
    section = text[text.index("The best policies") : text.index("Every setting")]
    assert "2 of 3 seeds</td><td>5 to 7</td><td>10 <small>" in section
    assert section.count("0.15 ± 0.02") == 3
    assert "PD-DDPG" not in section
    assert "The best policies" not in page.render(document({"PD-DDPG": run("pd-ddpg")}))


def test_joined_runs_have_the_best_of_all_their_seeds():
    first, second = run(seeds=2, best=[best_of(0), best_of(1)]), run(seeds=1, best=[best_of(7)])
    second = Run(second.path, second.description | {"seeds": [7]}, second.metrics, (7,), second.epochs)
    assert [one["seed"] for one in comparison.join([second, first]).best] == [0, 1, 7]


def test_what_runs_remarked_upon_stands_on_the_page_once():
    said = tuple({"epoch": k, "kind": kind, "text": text} for k, kind, text in [(3, "a", "1 < 2"), (9, "a", "1 < 2")])
    text = page.render(document({"APDO": dataclasses.replace(run(), remarks=said), "CPO": run("cpo")}))
    assert text.count("<td>APDO</td><td>3</td><td>1 &lt; 2</td>") == 1
    assert text.count("1 &lt; 2") == 1
    assert "remarked" not in page.render(document({"CPO": run("cpo")}))


def test_the_papers_target_is_asked_for_on_its_own_environment_only(tmp_path):
    for environment in ("point-gather", "queueing"):
        folder = tmp_path / environment
        one = run(environment=environment)
        rows = [
            {"epoch": k, "seed": s, "return": 1.0, "cost": [0.1], "multiplier": [0.0]}
            for k in range(8)
            for s in range(3)
        ]
        record = Records(folder, {name: value for name, value in one.description.items() if name != "format"})
        record.append(rows)
        record.close("finished")
    pages = {name: page.render(page.of_runs([tmp_path / name], "")) for name in ("point-gather", "queueing", "")}
    assert {name: "to return 11" in text for name, text in pages.items()} == {
        "point-gather": True,
        "queueing": False,
        "": False,
    }
    assert not any("return of 11" in pages[name] for name in ("queueing", ""))
