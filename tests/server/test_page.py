"""The page in a real browser: Debian's chromium through playwright, with a fake camera."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from concm.classifier.check import check
from concm.classifier.classifier import Classifier
from concm.progress import track
from tests.support.photographs import BACKBONE, write_class
from tests.support.serving import running
from tests.support.zoo import COUNT

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (Debian: apt install chromium)"),
]
expect = playwright.expect
FLAGS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def address(store) -> Iterator[str]:
    with running(store) as found:
        yield found


@pytest.fixture
def context(chromium, address) -> Iterator[object]:
    """A browser of this test alone; what goes wrong in a page fails the test."""
    wrong: list[str] = []
    found = chromium.new_context(permissions=["camera"])
    found.set_default_timeout(20_000)
    found.on("weberror", lambda error: wrong.append(str(error.error)))
    found.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
    yield found
    found.close()
    assert wrong == []


@pytest.fixture
def page(context, address):
    found = context.new_page()
    found.goto(address)
    expect(found.locator("#summary")).to_contain_text("version 2")
    return found


@pytest.fixture
def unknowns(tmp_path) -> list[Path]:
    return write_class(tmp_path / "submarine", 20)


def ask(page, files: list[Path]) -> None:
    page.locator("#files").set_input_files([str(file) for file in files])
    expect(page.locator("#said")).to_contain_text(f"{len(files)} photo")
    expect(page.locator("#progress")).to_be_hidden()


def tab(page, name: str) -> None:
    page.get_by_role("button", name=name).first.click()


def test_the_address_is_rid_of_the_token(page):
    assert "token" not in page.url


def test_twenty_unknowns_are_named_at_once_recognised_and_unknown_again_after_undo(page, unknowns, tmp_path):
    ask(page, unknowns)
    expect(page.locator(".answer")).to_have_count(20)
    expect(page.locator(".answer .near img")).not_to_have_count(0)
    tab(page, "Inbox")
    expect(page.locator(".count")).to_have_text("20")
    page.get_by_role("button", name="Choose all").click()
    expect(page.locator("#chosen")).to_have_text("20 of 20 photos chosen")
    page.get_by_label("Name of the chosen photos").fill("submarine")
    page.get_by_role("button", name="Teach").click()
    expect(page.locator("#said")).to_contain_text("Learned submarine (20): version 3.")
    expect(page.locator(".empty")).to_contain_text("Nothing waits")

    page.get_by_role("button", name="Answers").click()
    page.get_by_role("button", name="Clear").click()
    ask(page, write_class(tmp_path / "again" / "submarine", 6, first=500))
    said = [heading.inner_text() for heading in page.locator(".answer h3").all()]
    assert said.count("submarine") >= 4
    assert set(said) <= {"submarine", "unknown"}

    page.locator("#undo").click()
    expect(page.locator("#said")).to_have_text("Back at version 2.")
    tab(page, "Inbox")
    expect(page.locator(".card").nth(19)).to_be_visible()


def test_answers_of_an_older_version_are_asked_for_again(page, tmp_path):
    ask(page, write_class(tmp_path / "submarine", 8))
    again = page.get_by_role("button", name="Ask again")
    expect(again).to_be_hidden()
    page.locator(".answer .fix input").first.fill("submarine")
    page.locator(".answer .fix button").first.click()
    expect(page.locator("#summary")).to_contain_text("version 3")
    assert "submarine" not in [heading.inner_text() for heading in page.locator(".answer h3").all()]
    again.click()
    expect(page.locator("#said")).to_contain_text("8 photos answered")
    assert "submarine" in [heading.inner_text() for heading in page.locator(".answer h3").all()]
    expect(again).to_be_hidden()
    page.locator("#undo").click()
    expect(again).to_be_visible()


def test_the_camera_is_asked_live_and_a_photo_is_taken(page):
    page.locator("#camera").click()
    expect(page.locator("#live")).not_to_have_text("…")
    page.locator("#shoot").click()
    expect(page.locator(".answer")).to_have_count(1)
    expect(page.locator(".answer small").first).to_contain_text("camera ")
    page.locator("#lensclose").click()
    expect(page.locator("#lens")).to_be_hidden()


def test_two_tabs_see_the_same_version(context, page, address, unknowns):
    other = context.new_page()
    other.goto(address)
    expect(other.locator("#summary")).to_contain_text("version 2")
    ask(page, unknowns[:3])
    tab(other, "Inbox")
    expect(other.locator(".card")).to_have_count(3)
    other.get_by_role("button", name="Choose all").click()
    other.get_by_label("Name of the chosen photos").fill("submarine")
    other.keyboard.press("Enter")
    expect(other.locator("#summary")).to_contain_text("version 3")
    expect(page.locator("#summary")).to_contain_text("version 3")
    expect(page.locator(".count")).to_be_hidden()


def test_everything_can_be_done_by_keyboard(page, unknowns):
    ask(page, unknowns[:4])
    keys = page.keyboard

    def until(name: str) -> None:
        """Press Tab until something of this name has the focus."""
        for _ in range(80):
            keys.press("Tab")
            words = "(document.activeElement.innerText || '') + document.activeElement.ariaLabel"
            if name in page.evaluate(words):
                return
        pytest.fail(f"{name} cannot be reached by keyboard")

    until("Inbox")
    keys.press("Enter")
    expect(page.locator(".card")).to_have_count(4)
    first = page.locator(".card input").first
    first.focus()
    for key in ("Space", "ArrowRight", "Space", "ArrowRight", "Space"):
        keys.press(key)
    expect(page.locator("#chosen")).to_have_text("3 of 4 photos chosen")
    page.locator("#tabs button").first.focus()
    until("Name of the chosen photos")
    keys.type("submarine")
    keys.press("Enter")
    expect(page.locator("#summary")).to_contain_text("version 3")
    page.locator("body").focus()
    page.locator("#undo").focus()
    keys.press("Enter")
    expect(page.locator("#summary")).to_contain_text("version 2")


def test_a_wrong_answer_is_corrected_where_it_stands(page, tmp_path):
    ask(page, write_class(tmp_path / "cat", 1, first=400))
    page.get_by_label("What it really is").fill("tiger")
    page.get_by_role("button", name="Teach").click()
    expect(page.locator(".fix")).to_contain_text("Taught as tiger (version 3).")


def test_photos_are_moved_and_removed_and_classes_renamed_merged_and_forgotten(page):
    tab(page, "Classes")
    page.locator("main").get_by_role("button", name="okapi").click()
    expect(page.locator(".card")).to_have_count(4)
    page.locator(".card input").first.check()
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".card")).to_have_count(3)
    page.locator(".card input").first.check()
    page.get_by_label("Move to class").fill("cat")
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.locator("#said")).to_have_text("Moved 1 photo to cat: version 4.")
    expect(page.locator(".card")).to_have_count(2)
    page.get_by_label("New name").fill("forest giraffe")
    page.get_by_role("button", name="Rename").click()
    expect(page.locator("main h2").first).to_contain_text("forest giraffe")
    page.get_by_label("Merge into").select_option("dog")
    page.get_by_role("button", name="Merge into it").click()
    expect(page.locator("main h2").first).to_contain_text("dog")
    expect(page.locator(".card")).to_have_count(COUNT + 2)
    page.get_by_role("button", name="Forget this class").click()
    expect(page.locator("#summary")).to_contain_text("version 7 · 4 classes")
    for version in (6, 5, 4, 3, 2):
        page.locator("#undo").click()
        expect(page.locator("#said")).to_have_text(f"Back at version {version}.")
    expect(page.locator("#summary")).to_contain_text(f"version 2 · 6 classes · {5 * COUNT + 4} photos")


def test_health_shows_what_needs_photos_and_which_look_wrong(page, store, tmp_path):
    with Classifier(store, BACKBONE, device="cpu") as zoo:
        wrong = write_class(tmp_path / "wrong", 1, name="fox", first=900)
        zoo.learn({"okapi": wrong, "gnu": write_class(tmp_path / "gnu", 1)})
    expect(page.locator("#summary")).to_contain_text("version 3")
    tab(page, "Health")
    expect(page.locator("tbody tr")).to_have_count(7)
    expect(page.locator("tbody tr", has_text="gnu")).to_contain_text("needs more photos")
    expect(page.locator(".grid .card").first).to_contain_text("like fox")
    expect(page.locator(".pairs li").first).to_contain_text("okapi is taken for fox: 1 photo")
    expect(page.locator(".pairs img")).not_to_have_count(0)
    page.get_by_role("button", name="Show class").first.click()
    expect(page.locator("main h2").first).to_contain_text("okapi")
    tab(page, "Health")
    page.get_by_role("button", name="Move there").first.click()
    expect(page.locator("#said")).to_have_text("move: okapi (1) to fox: version 4.")
    expect(page.locator(".pairs li", has_text="okapi is taken for")).to_have_count(0)


def test_a_check_that_takes_long_says_so_and_shows_how_far_it_is(page, monkeypatch):
    go = threading.Event()

    def slow(album, known):
        for step in track(range(4), "comparing photos"):
            assert step < 2 or go.wait(20)
        return check(album, known)

    monkeypatch.setattr("concm.server.desk.check", slow)
    tab(page, "Health")
    expect(page.locator("main")).to_have_text("Comparing all taught photos with each other …")
    expect(page.locator("#progress")).to_have_js_property("value", 0.5)
    go.set()
    expect(page.locator("tbody tr")).to_have_count(6)
    expect(page.locator("#progress")).to_be_hidden()


def test_health_map_history_and_exports_are_shown(page):
    tab(page, "Health")
    expect(page.locator("tbody tr")).to_have_count(6)
    tab(page, "Map")
    expect(page.locator(".map")).to_have_attribute("aria-label", "A map of 6 classes")
    tab(page, "History")
    expect(page.locator("tbody tr")).to_have_count(2)
    with page.expect_download() as download:
        page.get_by_role("button", name="Backup of the store").click()
    assert download.value.suggested_filename == "zoo-backup.zip"


def test_a_folder_of_class_folders_is_taught_as_classes(page, tmp_path):
    for name in ("submarine", "lighthouse"):
        write_class(tmp_path / "photos" / name, 4)
    page.locator("#folder").set_input_files(str(tmp_path / "photos"))
    expect(page.locator(".answer")).to_have_count(8)
    page.get_by_role("button", name=re.compile(r"Teach by folder: (\w+ \(4\)(, )?){2}$")).click()
    expect(page.locator("#summary")).to_contain_text("version 3 · 8 classes")
    expect(page.locator("#said")).to_contain_text("lighthouse (4)")


def test_folders_that_do_not_lie_side_by_side_are_not_offered_as_classes(page, tmp_path):
    for name in ("Plum", "Plum/old", "Leek/old"):
        write_class(tmp_path / "shop" / name, 1, name=name)
    page.locator("#folder").set_input_files(str(tmp_path / "shop"))
    expect(page.locator(".answer")).to_have_count(3)
    expect(page.locator(".bar")).to_contain_text(
        "These folders are no classes, for they do not lie side by side: shop/"
    )
    expect(page.get_by_role("button", name="Teach by folder")).to_have_count(0)
    page.get_by_role("button", name="Clear").click()
    write_class(tmp_path / "good" / "Plum", 1, name="Plum")
    page.locator("#folder").set_input_files(str(tmp_path / "good"))
    page.get_by_role("button", name="Teach by folder: Plum (1)").click()
    expect(page.locator("#said")).to_have_text("Learned Plum (1): version 3.")


def test_a_photo_that_is_too_large_is_named_and_the_others_are_answered(page, tmp_path, monkeypatch):
    monkeypatch.setattr("concm.server.uploads.MOST_BYTES", 1_000_000)
    files = write_class(tmp_path / "cat", 10, first=400)
    files[3].write_bytes(files[3].read_bytes() + bytes(1_000_000))
    page.locator("#files").set_input_files([str(file) for file in files])
    said = page.locator("#said")
    expect(said).to_contain_text("9 photos answered")
    expect(said).to_contain_text(f"Not looked at: 1 photo: {files[3].name} is too large: a photo has 1 million bytes")


def test_after_a_request_that_failed_the_page_goes_on_and_says_what_it_did_not_look_at(chromium, address, tmp_path):
    found = chromium.new_context()
    page = found.new_page()
    page.goto(address)
    page.route(
        "**/api/predict*",
        lambda route: route.fulfill(status=500, json={"error": "the disk is full"}),
        times=1,
    )
    page.locator("#files").set_input_files([str(file) for file in write_class(tmp_path / "cat", 11, first=400)])
    expect(page.locator("#said")).to_contain_text("3 photos answered")
    expect(page.locator("#said")).to_contain_text("Not looked at: 8 photos: the disk is full.")
    expect(page.locator(".answer")).to_have_count(3)
    found.close()


def test_a_full_inbox_says_what_it_dropped(page, unknowns, monkeypatch):
    monkeypatch.setattr("concm.server.inbox.ROOM", 3)
    ask(page, unknowns[:3])
    tab(page, "Inbox")
    expect(page.locator("#full")).to_have_text(
        "The inbox keeps the newest 3 photos that wait. Name or dismiss some to make room."
    )
    ask(page, unknowns[3:5])
    expect(page.locator("#said")).to_contain_text("The inbox was full: 2 older photos that waited were dropped.")
    tab(page, "Inbox")
    expect(page.locator("#full")).to_contain_text("2 older ones were dropped since the server was started.")
    expect(page.locator(".card")).to_have_count(3)


# what is asked back


def test_a_name_that_is_almost_known_is_asked_about_and_the_answer_is_a_button(chromium, address, unknowns):
    found = chromium.new_context()  # the browser logs the refusal
    page = found.new_page()
    page.goto(address)
    ask(page, unknowns[:2])
    tab(page, "Inbox")
    page.get_by_role("button", name="Choose all").click()
    page.get_by_label("Name of the chosen photos").fill("Okapi")
    page.keyboard.press("Enter")
    said = page.locator("#said")
    expect(said).to_contain_text("or say “Keep it as a class of its own” if they are two classes")
    button = said.get_by_role("button", name="Keep it as a class of its own")
    button.focus()
    page.keyboard.press("Enter")
    expect(said).to_have_text("Learned Okapi (2): version 3.")
    expect(page.locator(".empty")).to_contain_text("Nothing waits")
    found.close()


def test_photos_that_another_class_has_are_left_out_if_somebody_says_so(chromium, address, tmp_path):
    found = chromium.new_context()
    page = found.new_page()
    page.goto(address)
    write_class(tmp_path / "photos" / "gnu", 2, name="submarine", first=5)
    write_class(tmp_path / "photos" / "gnu", 1, name="okapi", first=0)
    page.locator("#folder").set_input_files(str(tmp_path / "photos"))
    page.get_by_role("button", name="Teach by folder").click()
    said = page.locator("#said")
    expect(said).to_contain_text("is already known as a photo of 'okapi': which is it?")
    assert "duplicates" not in said.inner_text()
    said.get_by_role("button", name="Leave those out").click()
    expect(said).to_contain_text("Learned gnu (2): version 3. Skipped: ")
    found.close()


def test_a_photo_that_another_class_has_is_to_be_moved(chromium, address, tmp_path):
    found = chromium.new_context()  # the browser logs the refusal
    page = found.new_page()
    page.goto(address)
    ask(page, write_class(tmp_path / "okapi", 1, first=0))
    page.get_by_label("What it really is").fill("gnu")
    page.get_by_role("button", name="Teach").click()
    said = page.locator("#said")
    expect(said).to_contain_text("is already known as a photo of 'okapi': which is it?")
    expect(said).to_contain_text("A known photo gets another class with “Move” under Classes")
    expect(said.get_by_role("button")).to_have_count(0)
    found.close()


def test_what_is_known_already_changes_nothing_and_the_page_says_so(page, tmp_path):
    ask(page, write_class(tmp_path / "okapi", 1, first=0))
    page.get_by_label("What it really is").fill("okapi")
    page.get_by_role("button", name="Teach").click()
    expect(page.locator(".fix")).to_contain_text("It is a photo of okapi already.")
    expect(page.locator("#said")).to_have_text(
        "Nothing was changed. 1 of 1 photos of 'okapi' are known already. There is nothing new to learn."
    )
    expect(page.locator("#summary")).to_contain_text("version 2")


def test_what_is_no_photo_is_said(page, tmp_path):
    (tmp_path / "broken.jpg").write_text("no photo")
    (tmp_path / "notes.txt").write_text("no photo")
    files = [*write_class(tmp_path / "cat", 1, first=400), tmp_path / "broken.jpg", tmp_path / "notes.txt"]
    page.locator("#files").set_input_files([str(file) for file in files])
    said = page.locator("#said")
    expect(said).to_contain_text("Not looked at: 1 photo: broken.jpg cannot be read as a picture")
    expect(said).to_contain_text("Left out, for they are no photos: 1 file.")


def test_a_name_with_markup_in_it_stays_a_name(page, unknowns):
    ask(page, unknowns[:2])
    tab(page, "Inbox")
    page.get_by_role("button", name="Choose all").click()
    page.get_by_label("Name of the chosen photos").fill("<img src=x onerror=alert(1)>")
    page.get_by_role("button", name="Teach").click()
    expect(page.locator("#summary")).to_contain_text("version 3")
    tab(page, "Classes")
    expect(page.locator(".rows")).to_contain_text("<img src=x onerror=alert(1)>")


def test_a_phone_sees_all_of_it_without_scrolling_sideways(chromium, address, unknowns):
    found = chromium.new_context(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    page = found.new_page()
    page.goto(address)
    ask(page, unknowns[:3])
    for name in ("Inbox", "Answers", "Classes", "Health", "Map", "History"):
        tab(page, name)
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    lines = "heads => heads.map(head => head.clientHeight / parseFloat(getComputedStyle(head).lineHeight))"
    assert max(page.locator("thead th").evaluate_all(lines)) < 4  # words of the table's head are not broken
    found.close()
