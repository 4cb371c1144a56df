"""The sheet's page, rated in a headless browser."""

import json

import pytest

from hf_glm_curriculum.evaluation.sheet_page import render_sheet
from hf_glm_curriculum.evaluation.sheets import make_sheet, read_ratings, summarise
from tests.browsers import headless_chromium

pytestmark = pytest.mark.slow

EVIL = "<script>window.bad=1</script><img src=x onerror='window.bad=1'>"


@pytest.fixture(scope="module")
def chromium():
    with headless_chromium() as browser:
        yield browser


def test_a_rater_rates_leaves_comes_back_and_saves(chromium, tmp_path):
    prompts = [EVIL, "two", "three"]
    sheet = make_sheet(prompts, {"base": [EVIL, "b2", "b3"], "tuned": ["t1", "t2", "t3"]})
    page_file = tmp_path / "sheet.html"
    page_file.write_text(render_sheet(sheet, "Which answer is better?"), "utf-8")
    context = chromium.new_context(accept_downloads=True)
    requests, problems = [], []
    page = context.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(page_file.as_uri())
    assert page.locator("#prompt").inner_text() == sheet.items[0]["prompt"]
    page.locator("[data-choice=A]").click()
    assert page.locator("#place").inner_text() == "2 of 3"
    page.keyboard.press("2")
    page.locator("#comment").fill("both fine")
    page.locator("#save").click()
    assert "write your name" in page.locator("#message").inner_text()
    page.locator("#rater").fill("Ann Lee")
    page.reload()
    assert page.locator("#count").inner_text() == "2 of 3 rated"
    assert page.locator("#comment").input_value() == "both fine"
    page.locator("[data-choice=B]").click()
    assert "All rated" in page.locator("#message").inner_text()
    with page.expect_download() as waiting:
        page.locator("#save").click()
    saved = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(saved)
    assert saved.name == "ratings-Ann-Lee.json"
    found = read_ratings(saved, sheet.sheet, sheet.key)
    assert found.rater == "Ann Lee" and list(found.choices.values()) == ["A", "tie", "B"]
    assert summarise(sheet.key, [found])["items"] == 3
    assert page.evaluate("window.bad") is None and not problems
    assert {url.split(":")[0] for url in requests} <= {"file", "blob"}

    # Another computer goes on from the file, and refuses a foreign one.
    foreign = tmp_path / "foreign.json"
    foreign.write_text(json.dumps({"format": "x", "sheet": "y"}), "utf-8")
    other = chromium.new_context().new_page()
    other.goto(page_file.as_uri())
    other.locator("#load").set_input_files(foreign)
    other.wait_for_function("document.getElementById('message').textContent.includes('no ratings')")
    other.locator("#load").set_input_files(saved)
    other.wait_for_function("document.getElementById('count').textContent === '3 of 3 rated'")
    other.set_viewport_size({"width": 390, "height": 800})
    assert other.evaluate("document.documentElement.scrollWidth") <= 390
